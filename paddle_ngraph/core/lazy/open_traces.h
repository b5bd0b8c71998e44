// Open traces: one trace for all calls that differ in sizes and numbers only.
//
// Sizes of tensors and numbers of Python are constants of a recorded trace. Where two recorded
// traces make the same calls, and differ in sizes, or in numbers that may differ, the trace that is
// open in these is added to the tree. Later calls follow it, whatever their sizes and numbers are
// there: the shapes of results are computed (result_shapes.h), Python's numbers are passed to the
// graph. A call that differs elsewhere, too, is recorded once more, and opens the trace further.
#pragma once

#include <pybind11/pytypes.h>

#include <algorithm>
#include <vector>

#include "core/lazy/trace_cache.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

// The rules of a call's arguments for numbers in them: sizes, and operands of float32 tensors.
// `given`: the arguments in Python.
paddle::small_vector<NumberKind, 8> number_rules(const TracedCall& call, const PyObjects& given);

// Whether a number at a place with this rule may differ, and be this one; `is_negative`: whether
// bounds at this place are.
bool may_differ(NumberKind rule, bool is_negative, PyObject* number);

// Whether a value among the arguments of a call has open sizes. `is_open`: whether a value has.
template <typename IsOpen>
bool reads_open_sizes(const Argument& argument, const IsOpen& is_open) {
  if (argument.kind == Argument::Kind::kValue) return is_open(argument.value);
  return std::any_of(argument.items.begin(), argument.items.end(),
                     [&](const Argument& item) { return reads_open_sizes(item, is_open); });
}

// Adds the open trace that both traces are calls of, and returns its end; null if they differ in
// more than what may be open.
TraceNode* open_traces(TraceNode* root, TraceNode* one, TraceNode* other, Openness openness);

// Whether sizes are open in the trace that ends at a node, not only numbers that no size depends
// on.
bool has_open_sizes(const TraceNode& node);

// A node, and the nodes of open traces that its trace is one of.
std::vector<TraceNode*> with_opened(TraceNode* node);

// The numbers of a call that has followed `from` so far, as those of the open trace of `to`.
std::vector<pybind11::object> numbers_of(const TraceNode& from,
                                         const std::vector<pybind11::object>& numbers,
                                         const TraceNode& to);

}  // namespace paddle_ngraph
