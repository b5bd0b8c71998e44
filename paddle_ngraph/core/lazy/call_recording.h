// Recording a call, so that it can be deferred when it recurs.
#pragma once

#include <optional>
#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// Describes a call without its results; nothing if it cannot be deferred. The trace notes its new
// tensors. `has_gradient`: whether gradients are enabled.
std::optional<TracedCall> describe_call(Trace* trace, const InterceptedFunction& function,
                                        bool has_gradient, const PyObjects& given,
                                        PyObject* kwargs);

// Describes the result of a call, whose tensors are added to the values of the trace. Returns false
// if the call cannot be deferred next time, because its results are not new tensors.
bool describe_result(Trace* trace, PyObject* result, TracedCall* call);

}  // namespace paddle_ngraph
