// Numbers of Python that may differ from call to call: a temperature, the level of noise, the
// weight of a loss.
//
// A number is a constant of a trace until it has another value, then an input: a tensor without
// axes (open_traces.h). Python computes numbers anew in each call, so that numbers derived from
// others need no rule.
#pragma once

#include <pybind11/pytypes.h>

#include "core/paddle/call_interception.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

// Whether a number is among the arguments of a call that may be an input: an operand of a float32
// tensor. Paddle rounds such a number to float32, too, and no shape or error depends on it.
bool has_number_operand(const InterceptedFunction& function, const PyObjects& given);

// Whether the second argument is an integer that may be an input: an operand of an integer tensor.
bool has_integer_operand(const InterceptedFunction& function, const PyObjects& given);

// Whether an object is a float, or an integer that is one: Paddle rounds others once in
// comparisons, and twice in sums.
bool is_number(PyObject* object);

// Whether an object is an integer of 32 bits: the engine computes no others.
bool is_integer(PyObject* object);

}  // namespace paddle_ngraph
