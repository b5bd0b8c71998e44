// Optimizers of dynamic mode take their steps by the kernels that functions have
// (core/ov/kernels/optimizer.h), on all threads. Paddle's kernels run on one.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace paddle_ngraph {

// Has calls of `function`, the operator `name` of dynamic mode (sgd_, momentum_, adam_ or adamw_),
// computed here while FLAGS_use_ngraph is on: those on dense float32 tensors of the CPU, outside of
// `auto_cast`, whose memory does not overlap. Paddle computes all others. Calls of the function
// have to be announced (announced_calls.h). `tracer` returns the tracer of dynamic mode, or None.
// Throws NgraphError for other names.
void take_steps(const pybind11::object& function, const std::string& name,
                const pybind11::object& tracer);

}  // namespace paddle_ngraph
