// Finding a call among those that came next in earlier traces.
#pragma once

#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// The node after `trace.node()` of a call with equal arguments, whose new tensors the trace notes;
// null if there is none. `given`: the arguments as in TracedCall::arguments.
TraceNode* find_next(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                     const std::vector<PyObject*>& given, PyObject* kwargs);

// Compares the result of a call that was computed with the recorded one, and adds its tensors to
// the values of the trace. Returns false if kind or metadata differ.
bool match_result(Trace* trace, const TracedCall& call, PyObject* result);

}  // namespace paddle_ngraph
