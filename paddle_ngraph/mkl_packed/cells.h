// The elementwise computation of a recurrent step, forward and backward, for a chunk of one row.
//
// The gates of a row are stored one after the other, `hidden` apart, in Paddle's order: LSTM input,
// forget, cell, output; GRU reset, update, candidate; plain networks have one.
#pragma once

#include <cstdint>
#include <string>

namespace paddle_ngraph::mkl_packed {

enum class Mode { rnn_tanh, rnn_relu, gru, lstm };

// The mode with this name in Paddle, e.g. "LSTM". Throws NgraphError for an unknown name.
Mode mode_of(const std::string& name);

constexpr int64_t num_gates(Mode mode) {
  return mode == Mode::lstm ? 4 : mode == Mode::gru ? 3 : 1;
}

// Arguments of a forward step for `count` hidden units of one row of the batch; every pointer
// addresses the first of them.
struct ForwardChunk {
  int64_t hidden;
  int64_t count;
  float* gates;  // the input of the gates, W x; the step replaces it by the gates after activation
  const float* bias;       // biases b + d; for the third gate of GRU: b
  const float* recurrent;  // the product R h
  const float* new_bias;   // GRU: the bias d of the third gate
  float* recurrent_new;    // GRU: the third gate of R h + d, saved for the gradient
  const float* h_before;   // GRU: h of the preceding step
  const float* c_before;   // LSTM: c of the preceding step
  float* c;                // LSTM: the new c; may alias c_before
  float* c_active;         // LSTM: tanh(c), saved for the gradient
  float* h;
};

void forward_chunk(Mode mode, const ForwardChunk& chunk);

// `count` elements of a row in a backward step.
struct BackwardChunk {
  int64_t hidden;
  int64_t count;
  const float* gates;          // the gates after activation
  const float* h;              // plain networks: h of this step
  const float* h_before;       // GRU: h of the preceding step
  const float* recurrent_new;  // GRU: as saved by the forward pass
  const float* c_before;       // LSTM: c of the preceding step
  const float* c_active;       // LSTM: tanh(c)
  const float* out_grad;
  // the part of the gradient of h that comes through the gates of the following step
  const float* through_gates;
  float* carried;           // remaining gradient of h; replaced by that of the preceding step
  float* c_grad;            // LSTM: gradient of c; replaced by that of the preceding step
  float* gate_grads;        // gradient of R h + d (for all but GRU, of W x + b as well)
  float* input_gate_grads;  // GRU: gradient of W x + b
};

void backward_chunk(Mode mode, const BackwardChunk& chunk);

}  // namespace paddle_ngraph::mkl_packed
