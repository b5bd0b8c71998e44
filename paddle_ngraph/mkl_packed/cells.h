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
  float* gates;            // W x, the gates' input; the step overwrites it by the activated gates
  const float* bias;       // sum of the biases, b + d; for the third gate of GRU only b
  const float* recurrent;  // matmul of the recurrent weight with h of the preceding step: R h
  const float* new_bias;   // only for GRU: the bias d of the third gate
  float* recurrent_new;    // only for GRU: R h + d of the third gate, saved for the gradient
  const float* h_before;   // only for GRU: h of the preceding step
  const float* c_before;   // only for LSTM: c of the preceding step
  float* c;                // only for LSTM: c of this step; may be the memory of c_before
  float* c_active;         // only for LSTM: tanh(c), saved for the gradient
  float* h;
};

void forward_chunk(Mode mode, const ForwardChunk& chunk);

// `count` elements of a row in a backward step; every pointer addresses the first of them.
struct BackwardChunk {
  int64_t hidden;
  int64_t count;
  const float* gates;          // gates after their activations, saved by the forward pass
  const float* h;              // only for SimpleRNN: h of this step
  const float* h_before;       // only for GRU: h of the preceding step
  const float* recurrent_new;  // only for GRU: R h + d of the third gate, saved by the forward pass
  const float* c_before;       // only for LSTM: c of the preceding step
  const float* c_active;       // only for LSTM: tanh(c), saved by the forward pass
  const float* out_grad;
  const float* through_gates;  // gradient of h that comes through the gates of the following step
  float* carried;  // other gradient of h; the step replaces it by that of the preceding h
  float* c_grad;   // only for LSTM: gradient of c; the step replaces it by that of the preceding c
  float* gate_grads;        // gradient of R h + d (for all but GRU, of W x + b as well)
  float* input_gate_grads;  // only for GRU: gradient of W x + b
};

void backward_chunk(Mode mode, const BackwardChunk& chunk);

}  // namespace paddle_ngraph::mkl_packed
