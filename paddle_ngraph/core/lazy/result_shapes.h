// The shapes of an operator's results, computed from its arguments.
//
// Paddle knows them only by running an operator. A deferred call with new sizes needs them earlier.
// A recorded call is the check: a trace is used for other sizes only if the rules have given the
// shapes of all its recorded calls.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/core/ddim.h"

#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// The parameter of an operator to which an argument is passed; empty if it has none of this name.
// `keyword`: the name by which it is passed; null for the positional argument at index `at`.
std::string parameter_of(const ShapeRule& rule, size_t at, const char* keyword);

// Nothing if the operator has no rule, the rule does not cover the arguments, Paddle would raise,
// or a result is empty. `given`: positional arguments, then the values of `kwargs`.
// `num_results`: the number of tensors that the call returns.
std::optional<std::vector<phi::DDim>> result_shapes(const InterceptedFunction& function,
                                                    const std::vector<PyObject*>& given,
                                                    PyObject* kwargs, size_t num_results);

}  // namespace paddle_ngraph
