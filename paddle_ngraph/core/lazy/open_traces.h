// Open traces: one trace for all calls that differ in sizes and numbers only.
//
// Sizes of tensors and numbers of Python are constants of a recorded trace. Where two recorded
// traces make the same calls, and differ in sizes, or in numbers that may differ, the trace that is
// open in these is added to the tree. Later calls follow it, whatever their sizes and numbers are
// there: the shapes of results are computed (result_shapes.h), Python's numbers are passed to the
// graph. A call that differs elsewhere, too, is recorded once more, and opens the trace further.
#pragma once

#include <pybind11/pytypes.h>

#include <vector>

#include "core/lazy/trace_cache.h"

namespace paddle_ngraph {

// Whether a number at the place of a number of an open trace is covered by it: a size, or an
// operand of a float32 tensor. `argument`: the index of the call's argument that it is a part of.
bool may_differ(const TracedCall& call, size_t argument, PyObject* number);

// Adds the open trace that both traces are calls of, and returns its end; null if they differ in
// more than sizes and numbers.
TraceNode* open_traces(TraceNode* root, TraceNode* one, TraceNode* other);

// A node, and the nodes of open traces that its trace is one of.
std::vector<TraceNode*> with_opened(TraceNode* node);

// The numbers of a call that has followed `from` so far, as those of the open trace of `to`.
std::vector<pybind11::object> numbers_of(const TraceNode& from,
                                         const std::vector<pybind11::object>& numbers,
                                         const TraceNode& to);

}  // namespace paddle_ngraph
