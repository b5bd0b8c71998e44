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
  const GemmProvider* gemm;  // library that computes the matmuls
  Mode mode;
  int64_t steps;
  int64_t batch;
  int64_t input;
  int64_t hidden;
  int64_t layers;
  int64_t directions;
  bool is_test;
  float dropout;  // probability with which dropout between layers drops an element
  std::vector<const phi::DenseTensor*> weights;
  // Length of each sequence; empty if all sequences have `steps` steps.
  std::vector<int64_t> lengths;

  int64_t gates() const { return num_gates(mode) * hidden; }
  int64_t width() const { return directions * hidden; }
  int64_t rows() const { return steps * batch; }
  int64_t cells() const { return layers * directions; }
  bool has_dropout() const { return !is_test && layers > 1 && dropout > 0.0f; }

  // The number of floats that a forward pass saves for the backward pass.
  int64_t reserve_size() const;
  int64_t mask_size() const { return has_dropout() ? rows() * width() : 0; }
};

struct ForwardData {
  const float* x;
  const float* h_before;  // initial h: [cells, batch, hidden], like c_before, h_last and c_last
  const float* c_before;  // initial c; only for LSTM
  float* out;
  float* h_last;
  float* c_last;        // final c; only for LSTM
  float* reserve;       // buffer for values that the gradient reads; null in inference (is_test)
  const uint8_t* mask;  // dropout mask, which is used between any two layers
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
