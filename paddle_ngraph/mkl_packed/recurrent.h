// Recurrent networks with several layers and directions, forward and backward, as Paddle's `rnn`.
//
// All tensors are float32 and time-major: x [steps, batch, input], out [steps, batch, directions *
// hidden], states [layers * directions, batch, hidden]; weights in Paddle's order: w_ih and w_hh of
// every layer and direction, then b_ih and b_hh of each.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "mkl_packed/cells.h"
#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

struct Network {
  const GemmProvider* gemm;  // the library that computes the matmuls
  Mode mode;
  int64_t steps;
  int64_t batch;
  int64_t input;
  int64_t hidden;
  int64_t layers;
  int64_t directions;
  bool is_test;
  float dropout;  // probability of dropout between layers
  std::vector<const phi::DenseTensor*> weights;
  std::vector<int64_t> lengths;  // length of each sequence; empty: all have `steps`

  int64_t gates() const { return num_gates(mode) * hidden; }
  int64_t width() const { return directions * hidden; }
  int64_t rows() const { return steps * batch; }
  int64_t cells() const { return layers * directions; }
  bool has_dropout() const { return !is_test && layers > 1 && dropout > 0.0f; }

  // The number of floats that a forward pass saves for the gradient.
  int64_t reserve_size() const;
  int64_t mask_size() const { return has_dropout() ? rows() * width() : 0; }
};

struct ForwardData {
  const float* x;
  const float* h_before;  // initial states: [cells, batch, hidden], as h_last and c_last
  const float* c_before;  // LSTM only
  float* out;
  float* h_last;
  float* c_last;        // LSTM only
  float* reserve;       // values saved for the gradient; null when is_test
  const uint8_t* mask;  // mask of dropout, the same between any two layers
};

void forward(const Network& network, const ForwardData& data);

struct BackwardData {
  const float* x;
  const float* h_before;
  const float* c_before;
  const float* out;
  const float* reserve;
  const uint8_t* mask;
  const float* out_grad;
  const float* h_last_grad;
  const float* c_last_grad;
  float* x_grad;
  float* h_before_grad;
  float* c_before_grad;
  std::vector<float*> weight_grads;
};

void backward(const Network& network, const BackwardData& data);

}  // namespace paddle_ngraph::mkl_packed
