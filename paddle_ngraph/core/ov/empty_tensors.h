// Empty tensors. The CPU plugin divides by their sizes, reads at null addresses, and gets their
// means wrong: a model with one is not compiled, and Paddle's kernels run instead.
#pragma once

#include <string>

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// A sentence naming an operator of `model` that reads or makes an empty tensor; "" if none does.
// Empty lists of integers, such as axes, do not count.
std::string find_empty_tensor(const ov::Model& model);

}  // namespace paddle_ngraph
