// Numbers of Python that differ from call to call: a temperature, the level of noise, the weight of
// a loss.
//
// A number is a constant of a trace, so each other number would be another trace with a graph of
// its own. Once a number of an arithmetic operator has had several values at one place of a trace,
// it is an input there: a tensor without axes. Python computes numbers anew in each call, so that
// numbers derived from others need no rule.
#pragma once

#include <pybind11/pytypes.h>

#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// Whether a number is among the arguments of a call that may be an input: an operand of a float32
// tensor. Paddle rounds such a number to float32, too, and no shape or error depends on it.
bool has_number_operand(const InterceptedFunction& function, const std::vector<PyObject*>& given);

// Whether an object is a float, or an integer that is one: Paddle rounds others once in
// comparisons, and twice in sums.
bool is_number(PyObject* object);

// Counts a call with another number, which is recorded after the last call of the trace.
void count_number(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                  const std::vector<PyObject*>& given);

// Whether the number of a call that would follow the trace has had several values there.
bool is_number_varying(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                       const std::vector<PyObject*>& given);

// Replaces the number by a tensor, to which `copies` gets a reference. Returns the function of the
// trace's call: a product with a number is Paddle's `scale`, whose sum with 0 leaves no -0.
const InterceptedFunction& replace_number(const InterceptedFunction& function,
                                          std::vector<PyObject*>* given,
                                          std::vector<pybind11::object>* copies);

}  // namespace paddle_ngraph
