// Optimizer updates in dynamic mode by the plugin's kernels (core/ov/kernels), on all threads, with
// the operations that clipping by a norm needs. Paddle's kernels run on one thread.
#pragma once

#include <pybind11/pytypes.h>

#include <string>

namespace paddle_ngraph {

// Has calls of `function`, an operator of dynamic mode, computed here while FLAGS_use_ngraph is on:
// sgd_, momentum_, adam_, adamw_; without gradients squared_l2_norm, and multiply and multiply_ by
// a scalar. Only calls on dense float32 CPU tensors, outside `auto_cast`, whose written tensors
// overlap nothing are computed here; all others fall back to Paddle. Calls of the function have to
// be intercepted (call_interception.h). `tracer` returns the tracer of dynamic mode, or None.
// Throws NgraphError for other names.
void replace_optimizer_kernel(const pybind11::object& function, const std::string& name,
                              const pybind11::object& tracer);

}  // namespace paddle_ngraph
