// The elementwise part of a recurrent step, forward and backward, for a piece of one row.
//
// The gates of a row lie one behind the other, `hidden` apart, in Paddle's order: LSTM input,
// forget, cell, output; GRU reset, update, candidate; plain networks have one.
#pragma once

#include <cstdint>
#include <string>

namespace paddle_ngraph::mkl_packed {

enum class Mode { rnn_tanh, rnn_relu, gru, lstm };

// By Paddle's name of it, e.g. "LSTM". Throws NgraphError for another name.
Mode mode_of(const std::string& name);

constexpr int64_t num_gates(Mode mode) {
  return mode == Mode::lstm ? 4 : mode == Mode::gru ? 3 : 1;
}

// `count` elements of a row in a forward step; every pointer is at the first of them.
struct ForwardChunk {
  int64_t hidden;
  int64_t count;
  float* gates;            // W x; replaced by the active gates
  const float* bias;       // b + d; the third gate of GRU: b
  const float* recurrent;  // R h
  const float* new_bias;   // GRU: d of the third gate
  float* recurrent_new;    // GRU: the third gate of R h + d, kept for the gradient
  const float* h_before;   // GRU
  const float* c_before;   // LSTM
  float* c;                // LSTM; may be c_before
  float* c_active;         // LSTM: tanh(c), kept for the gradient
  float* h;
};

void forward_chunk(Mode mode, const ForwardChunk& chunk);

// `count` elements of a row in a backward step.
struct BackwardChunk {
  int64_t hidden;
  int64_t count;
  const float* gates;          // active
  const float* h;              // plain networks
  const float* h_before;       // GRU
  const float* recurrent_new;  // GRU
  const float* c_before;       // LSTM
  const float* c_active;       // LSTM
  const float* out_grad;
  const float* through_gates;  // what reaches h by way of the gates of the step after
  float* carried;              // what reaches h past them; replaced by that of the step before
  float* c_grad;               // LSTM; replaced by that of the step before
  float* gate_grads;           // of R h + d (but of GRU, of W x + b as well)
  float* input_gate_grads;     // GRU: of W x + b
};

void backward_chunk(Mode mode, const BackwardChunk& chunk);

}  // namespace paddle_ngraph::mkl_packed
