// Lists of tensors that grow from call to call, such as those to which each step of a decoder
// appends its result, and which it then stacks.
//
// The number of members is a constant of a recorded call, so that each length would be another
// trace. Where a trace has been recorded with a list of another length at the same place, the known
// members of the list (tensors with memory that no call of this trace has read or computed) are
// joined at once: the recorded call reads one tensor in place of these, with a size that may be
// open (open_traces.h).
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// A list of tensors, divided into parts that are each joined alone.
struct ListPart {
  PyObjects members;
  bool is_known = false;  // whether the members are joined at once
};

// Divides the list that a call joins. Nothing without two known members in succession, or where
// Paddle might raise: shapes or dtypes differ, or a member has no elements.
std::optional<std::vector<ListPart>> parts_of_list(const Trace& trace,
                                                   const InterceptedFunction& function,
                                                   PyObject* args, PyObject* kwargs);

// Whether a call of the function with a list of another length follows the trace.
bool has_other_length(const TraceNode& node, const InterceptedFunction& function, PyObject* args);

// The arguments of a call that joins other tensors instead, along the same axis.
pybind11::tuple with_members(PyObject* args, const std::vector<pybind11::object>& members);

}  // namespace paddle_ngraph
