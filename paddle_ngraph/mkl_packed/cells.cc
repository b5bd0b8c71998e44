#include "mkl_packed/cells.h"

#include "core/common/error.h"
#include "core/common/exponential.h"
#include "core/common/vectorized.h"

namespace paddle_ngraph::mkl_packed {

namespace {

NGRAPH_INLINE inline float sigmoid(float x) {
  const auto [power, rest] = exponential(-x);
  return 1.0f / (1.0f + (power + power * rest));
}

// (e^2x - 1) / (e^2x + 1). Near 0, where 2^n is 1, e^2x - 1 loses no precision.
NGRAPH_INLINE inline float tanh_of(float x) {
  const auto [power, rest] = exponential(2.0f * x);
  const float less_one = power * rest + (power - 1.0f);
  return less_one / (less_one + 2.0f);
}

// The cell of a plain recurrent network: h = activate(sum).
template <typename Activate>
NGRAPH_INLINE inline void plain_forward(const ForwardChunk& p, const Activate& activate) {
  float* __restrict__ gates = p.gates;
  float* __restrict__ h = p.h;
  const float* __restrict__ bias = p.bias;
  const float* __restrict__ recurrent = p.recurrent;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) h[j] = activate(gates[j] + recurrent[j] + bias[j]);
}

NGRAPH_VECTORIZED
void tanh_forward(const ForwardChunk& p) { plain_forward(p, tanh_of); }

NGRAPH_VECTORIZED
void relu_forward(const ForwardChunk& p) {
  plain_forward(p, [](float sum) NGRAPH_INLINE { return sum < 0.0f ? 0.0f : sum; });
}

NGRAPH_VECTORIZED
void gru_forward(const ForwardChunk& p) {
  const int64_t hidden = p.hidden;
  float* __restrict__ r = p.gates;
  float* __restrict__ z = p.gates + hidden;
  float* __restrict__ n = p.gates + 2 * hidden;
  const float* __restrict__ bias = p.bias;
  const float* __restrict__ recurrent = p.recurrent;
  const float* __restrict__ new_bias = p.new_bias;
  const float* h_before = p.h_before;
  float* __restrict__ recurrent_new = p.recurrent_new;
  float* h = p.h;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    const float reset = sigmoid(r[j] + recurrent[j] + bias[j]);
    const float update = sigmoid(z[j] + recurrent[hidden + j] + bias[hidden + j]);
    const float inner = recurrent[2 * hidden + j] + new_bias[j];
    const float candidate = tanh_of(n[j] + bias[2 * hidden + j] + reset * inner);
    r[j] = reset;
    z[j] = update;
    n[j] = candidate;
    recurrent_new[j] = inner;
    h[j] = update * h_before[j] + (1.0f - update) * candidate;
  }
}

NGRAPH_VECTORIZED
void lstm_forward(const ForwardChunk& p) {
  const int64_t hidden = p.hidden;
  float* __restrict__ i = p.gates;
  float* __restrict__ f = p.gates + hidden;
  float* __restrict__ g = p.gates + 2 * hidden;
  float* __restrict__ o = p.gates + 3 * hidden;
  const float* __restrict__ bias = p.bias;
  const float* __restrict__ recurrent = p.recurrent;
  const float* c_before = p.c_before;
  float* c = p.c;
  float* __restrict__ c_active = p.c_active;
  float* __restrict__ h = p.h;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    i[j] = sigmoid(i[j] + recurrent[j] + bias[j]);
    f[j] = sigmoid(f[j] + recurrent[hidden + j] + bias[hidden + j]);
    g[j] = tanh_of(g[j] + recurrent[2 * hidden + j] + bias[2 * hidden + j]);
    o[j] = sigmoid(o[j] + recurrent[3 * hidden + j] + bias[3 * hidden + j]);
  }
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    const float cell = f[j] * c_before[j] + i[j] * g[j];
    c[j] = cell;
    c_active[j] = tanh_of(cell);
    h[j] = o[j] * c_active[j];
  }
}

// slope(h, grad) is the derivative of the activation, computed from its result h, times grad.
template <typename Slope>
NGRAPH_INLINE inline void plain_backward(const BackwardChunk& p, const Slope& slope) {
  float* __restrict__ gate_grads = p.gate_grads;
  float* __restrict__ carried = p.carried;
  const float* __restrict__ h = p.h;
  const float* __restrict__ out_grad = p.out_grad;
  const float* __restrict__ through_gates = p.through_gates;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    gate_grads[j] = slope(h[j], out_grad[j] + through_gates[j] + carried[j]);
    carried[j] = 0.0f;
  }
}

NGRAPH_VECTORIZED
void tanh_backward(const BackwardChunk& p) {
  plain_backward(p, [](float h, float grad) NGRAPH_INLINE { return grad * (1.0f - h * h); });
}

NGRAPH_VECTORIZED
void relu_backward(const BackwardChunk& p) {
  plain_backward(p, [](float h, float grad) NGRAPH_INLINE { return h > 0.0f ? grad : 0.0f; });
}

NGRAPH_VECTORIZED
void gru_backward(const BackwardChunk& p) {
  const int64_t hidden = p.hidden;
  const float* __restrict__ r = p.gates;
  const float* __restrict__ z = p.gates + hidden;
  const float* __restrict__ n = p.gates + 2 * hidden;
  float* __restrict__ grads = p.gate_grads;
  float* __restrict__ input_grads = p.input_gate_grads;
  float* __restrict__ carried = p.carried;
  const float* __restrict__ h_before = p.h_before;
  const float* __restrict__ recurrent_new = p.recurrent_new;
  const float* __restrict__ out_grad = p.out_grad;
  const float* __restrict__ through_gates = p.through_gates;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    const float h_grad = out_grad[j] + through_gates[j] + carried[j];
    const float new_grad = h_grad * (1.0f - z[j]) * (1.0f - n[j] * n[j]);
    const float update_grad = h_grad * (h_before[j] - n[j]) * z[j] * (1.0f - z[j]);
    const float reset_grad = new_grad * recurrent_new[j] * r[j] * (1.0f - r[j]);
    grads[j] = input_grads[j] = reset_grad;
    grads[hidden + j] = input_grads[hidden + j] = update_grad;
    input_grads[2 * hidden + j] = new_grad;
    grads[2 * hidden + j] = new_grad * r[j];
    carried[j] = h_grad * z[j];
  }
}

NGRAPH_VECTORIZED
void lstm_backward(const BackwardChunk& p) {
  const int64_t hidden = p.hidden;
  const float* __restrict__ i = p.gates;
  const float* __restrict__ f = p.gates + hidden;
  const float* __restrict__ g = p.gates + 2 * hidden;
  const float* __restrict__ o = p.gates + 3 * hidden;
  float* __restrict__ grads = p.gate_grads;
  float* __restrict__ carried = p.carried;
  float* __restrict__ c_grads = p.c_grad;
  const float* __restrict__ c_before = p.c_before;
  const float* __restrict__ c_active = p.c_active;
  const float* __restrict__ out_grad = p.out_grad;
  const float* __restrict__ through_gates = p.through_gates;
#pragma GCC ivdep
  for (int64_t j = 0; j < p.count; ++j) {
    const float h_grad = out_grad[j] + through_gates[j] + carried[j];
    const float active = c_active[j];
    const float c_grad = c_grads[j] + h_grad * o[j] * (1.0f - active * active);
    grads[j] = c_grad * g[j] * i[j] * (1.0f - i[j]);
    grads[hidden + j] = c_grad * c_before[j] * f[j] * (1.0f - f[j]);
    grads[2 * hidden + j] = c_grad * i[j] * (1.0f - g[j] * g[j]);
    grads[3 * hidden + j] = h_grad * active * o[j] * (1.0f - o[j]);
    c_grads[j] = c_grad * f[j];
    carried[j] = 0.0f;
  }
}

}  // namespace

Mode mode_of(const std::string& name) {
  if (name == "RNN_TANH") return Mode::rnn_tanh;
  if (name == "RNN_RELU") return Mode::rnn_relu;
  if (name == "GRU") return Mode::gru;
  if (name == "LSTM") return Mode::lstm;
  throw NgraphError(concat("mode '", name, "' is none of RNN_TANH, RNN_RELU, GRU, LSTM"));
}

void forward_chunk(Mode mode, const ForwardChunk& chunk) {
  switch (mode) {
    case Mode::rnn_tanh:
      return tanh_forward(chunk);
    case Mode::rnn_relu:
      return relu_forward(chunk);
    case Mode::gru:
      return gru_forward(chunk);
    case Mode::lstm:
      return lstm_forward(chunk);
  }
}

void backward_chunk(Mode mode, const BackwardChunk& chunk) {
  switch (mode) {
    case Mode::rnn_tanh:
      return tanh_backward(chunk);
    case Mode::rnn_relu:
      return relu_backward(chunk);
    case Mode::gru:
      return gru_backward(chunk);
    case Mode::lstm:
      return lstm_backward(chunk);
  }
}

}  // namespace paddle_ngraph::mkl_packed
