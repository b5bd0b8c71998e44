// The shapes of an operator's results, computed from its arguments.
//
// Paddle knows them only by running an operator. A deferred call with new sizes needs them earlier.
// A recorded call is the check: a trace is used for other sizes only if the rules have given the
// shapes of all its recorded calls.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <string>

#include "core/lazy/traced_call.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// The parameter of an operator to which an argument is passed; empty if it has none of this name.
// `keyword`: the name by which it is passed; null for the positional argument at index `at`.
std::string parameter_of(const ShapeRule& rule, size_t at, const char* keyword);

// The places of the arguments on which shapes of results depend; nothing if the operator has no
// rule, or not for these arguments.
std::optional<ParameterPlaces> parameter_places(const TracedCall& call);

// Computes the shapes of the results of a call, which has places of parameters, for other
// arguments. Returns false if the rule does not cover the arguments, Paddle would raise, or a
// result is empty.
bool find_result_shapes(const TracedCall& call, const PyObjects& given, ResultShapes* found);

}  // namespace paddle_ngraph
