// The arguments of a call as a trace takes them.
#pragma once

#include <pybind11/pytypes.h>

#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// Replaces the arguments of a call: tensors that may be written before the deferred call is
// computed by copies, and NumPy scalars and arrays by their equivalents of Python and Paddle.
// `copies` gets references to new objects.
void snapshot_arguments(const Trace& trace, const InterceptedFunction& function, PyObjects* given,
                        std::vector<pybind11::object>* copies);

// Whether there are tensors among the arguments, and all are materialized integer tensors. Results
// computed from these (indices, masks, lengths) are computed immediately, because lookups need
// their values.
bool has_only_known_integers(const Trace& trace, PyObject* args, PyObject* self);

}  // namespace paddle_ngraph
