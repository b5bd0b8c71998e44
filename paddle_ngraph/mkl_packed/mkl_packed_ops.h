// Recurrent layers in inference, called without Paddle's machinery for custom operators.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/api/include/tensor.h"

namespace paddle_ngraph::mkl_packed {

// The attributes of the custom operators, which are those of Paddle's `rnn`.
struct Attributes {
  std::string mode;
  int64_t hidden_size;
  int64_t num_layers;
  bool is_bidirec;
  float dropout_prob;
  int seed;
  bool is_test;

  int64_t directions() const { return is_bidirec ? 2 : 1; }
};

// Runs a recurrent layer without a gradient, and returns its output and last states: what the
// custom operator returns first. Paddle takes longer to call that than a short layer takes.
//
// Args:
//   inputs: x, the initial states and the weights, each [...] as in recurrent.h.
//   lengths: the length of each sequence, or null.
//
// Returns std::nullopt if the operator has to run instead, which then reports an error: for other
// tensors than contiguous float32 on the CPU, and for whatever is invalid.
std::optional<std::vector<paddle::Tensor>> infer(const std::vector<paddle::Tensor>& inputs,
                                                 const paddle::Tensor* lengths,
                                                 const Attributes& attributes);

}  // namespace paddle_ngraph::mkl_packed
