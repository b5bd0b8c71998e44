// Tensors of no elements. The CPU plugin divides by their sizes, takes addresses of nothing, and
// has its own word on their means: a model with one is not compiled, and Paddle's kernels run
// instead.
#pragma once

#include <string>

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// A sentence on an operator of `model` that reads or makes an empty tensor; "" where none does.
// Empty lists of whole numbers do not count: of axes, say.
std::string why_empty(const ov::Model& model);

}  // namespace paddle_ngraph
