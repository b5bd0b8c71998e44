// Finding a call among those that came next in earlier traces.
#pragma once

#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// The node after `trace.node()` of a call with equal arguments, whose new tensors the trace notes;
// null if there is none. `given`: the arguments as in TracedCall::arguments.
TraceNode* find_next(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                     const PyObjects& given, PyObject* kwargs);

// Whether a computed result has the noted metadata. `result`: its number among the results.
bool has_meta(const Trace& trace, const TracedTensorMeta& meta, int result, const TracedCall& call);

// Compares the result of a call that was computed with the recorded one, and adds its tensors to
// the values of the trace. Returns false if kind or metadata differ.
bool match_result(Trace* trace, const TracedCall& call, PyObject* result);

}  // namespace paddle_ngraph
