// Empty tensors. The CPU plugin divides by their sizes, reads at null addresses, and computes wrong
// means of them: a model with an empty tensor is not compiled but falls back to Paddle's kernels.
#pragma once

#include <string>

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// Returns a sentence that names an operator of `model` that reads or computes an empty tensor; ""
// if there is none. Empty lists of integers, such as axes, are ignored.
std::string find_empty_tensor(const ov::Model& model);

}  // namespace paddle_ngraph
