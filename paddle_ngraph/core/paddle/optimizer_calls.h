// Optimizers of dynamic mode compute by kernels of ours (core/ov/kernels), on all threads: steps,
// and what clipping by a norm needs. Paddle's kernels run on one.
#pragma once

#include <pybind11/pytypes.h>

#include <string>

namespace paddle_ngraph {

// Has calls of `function`, an operator of dynamic mode, computed here while FLAGS_use_ngraph is on:
// sgd_, momentum_, adam_, adamw_; without gradients squared_l2_norm, and multiply and multiply_ by
// one number. These are calls on dense float32 tensors of the CPU, outside of `auto_cast`, that
// write nothing which overlaps; Paddle computes all others. Calls of the function have to be
// announced (call_interception.h). `tracer` returns the tracer of dynamic mode, or None. Throws
// NgraphError for other names.
void replace_optimizer_kernel(const pybind11::object& function, const std::string& name,
                              const pybind11::object& tracer);

}  // namespace paddle_ngraph
