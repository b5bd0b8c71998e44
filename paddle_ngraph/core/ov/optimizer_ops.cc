#include "core/ov/optimizer_ops.h"

#include <algorithm>
#include <cmath>

#include "core/common/vectorized.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// Elements computed at a time: their data stays in the L1 cache.
constexpr int64_t kChunk = 512;

// Calls body(first, count) for chunks of [0, size).
template <typename Body>
void each_chunk(int64_t size, const Body& body) {
  parallel_ranges((size + kChunk - 1) / kChunk, 2 * kChunk, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      body(chunk * kChunk, std::min(kChunk, size - chunk * kChunk));
    }
  });
}

struct MomentumStep {
  float mu, rate, decay;
  bool nesterov, decays;
};

NGRAPH_VECTORIZED void momentum_chunk(const MomentumStep& step, int64_t count,
                                      const float* __restrict__ param,
                                      const float* __restrict__ grad,
                                      const float* __restrict__ velocity,
                                      float* __restrict__ param_out,
                                      float* __restrict__ velocity_out) {
  const float mu = step.mu, rate = step.rate, decay = step.decay;
  const float* g = grad;
  float decayed[kChunk];
  if (step.decays) {
    for (int64_t i = 0; i < count; ++i) decayed[i] = param[i] * decay + grad[i];
    g = decayed;
  }
  for (int64_t i = 0; i < count; ++i) velocity_out[i] = velocity[i] * mu + g[i];
  if (step.nesterov) {
    for (int64_t i = 0; i < count; ++i) {
      param_out[i] = param[i] - (g[i] + velocity_out[i] * mu) * rate;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) param_out[i] = param[i] - rate * velocity_out[i];
  }
}

struct AdamStep {
  float beta1, beta2, rate, epsilon, share;
  bool decays, keeps_largest;
};

// `moment2_max` and `largest` are null except with AMSGrad.
NGRAPH_VECTORIZED void adam_chunk(const AdamStep& step, int64_t count,
                                  const float* __restrict__ param, const float* __restrict__ grad,
                                  const float* __restrict__ moment1,
                                  const float* __restrict__ moment2,
                                  const float* __restrict__ moment2_max,
                                  float* __restrict__ param_out, float* __restrict__ moment1_out,
                                  float* __restrict__ moment2_out, float* __restrict__ largest) {
  const float beta1 = step.beta1, beta2 = step.beta2;
  const float new1 = 1.0F - beta1, new2 = 1.0F - beta2;
  const float rate = step.rate, epsilon = step.epsilon, share = step.share;
  for (int64_t i = 0; i < count; ++i) moment1_out[i] = beta1 * moment1[i] + new1 * grad[i];
  for (int64_t i = 0; i < count; ++i) {
    moment2_out[i] = beta2 * moment2[i] + new2 * grad[i] * grad[i];
  }
  const float* below_root = moment2_out;
  if (moment2_max != nullptr) {
    // Of a NaN and a number Paddle takes the newer one, but its kernel for AVX-512 the older one.
    const float* left = step.keeps_largest ? moment2_out : moment2_max;
    const float* right = step.keeps_largest ? moment2_max : moment2_out;
    for (int64_t i = 0; i < count; ++i) largest[i] = left[i] > right[i] ? left[i] : right[i];
    below_root = largest;
  }
  if (step.decays) {
    for (int64_t i = 0; i < count; ++i) param_out[i] = param[i] - share * param[i];
  } else {
    for (int64_t i = 0; i < count; ++i) param_out[i] = param[i];
  }
  for (int64_t i = 0; i < count; ++i) {
    param_out[i] -= rate * (moment1_out[i] / (std::sqrt(below_root[i]) + epsilon));
  }
}

const float* numbers(const ov::Tensor& tensor) { return tensor.data<const float>(); }
float* numbers(ov::Tensor& tensor) { return tensor.data<float>(); }

float number(const ov::Tensor& tensor) { return *tensor.data<const float>(); }

}  // namespace

void OptimizerOp::require_tensors(size_t begin, size_t end) const {
  const auto& param = get_input_partial_shape(0);
  for (size_t i = begin; i < end; ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(get_input_element_type(i) == ov::element::f32 && shape.compatible(param), "input ", i,
            " is ", get_input_element_type(i), shape, ", not f32", param);
  }
}

void OptimizerOp::require_numbers(size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(get_input_element_type(i) == ov::element::f32 && shape.is_static() &&
                ov::shape_size(shape.to_shape()) == 1,
            "input ", i, " is ", get_input_element_type(i), shape, ", not one f32");
  }
}

void OptimizerOp::set_outputs(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    set_output_type(i, ov::element::f32, get_input_partial_shape(0));
  }
}

// ---------------------------------------------------------------------------------------------
// Momentum

void Momentum::infer() {
  require(get_input_size() == 4, "takes 4 inputs, got ", get_input_size());
  require_tensors(0, 3);
  require_numbers(3, 4);
  set_outputs(2);
}

void Momentum::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto size = static_cast<int64_t>(inputs[0].get_size());
  const MomentumStep step{static_cast<float>(attributes().mu), number(inputs[3]),
                          static_cast<float>(attributes().decay), attributes().nesterov,
                          attributes().decays};
  each_chunk(size, [&](int64_t first, int64_t count) {
    momentum_chunk(step, count, numbers(inputs[0]) + first, numbers(inputs[1]) + first,
                   numbers(inputs[2]) + first, numbers((*outputs)[0]) + first,
                   numbers((*outputs)[1]) + first);
  });
}

// ---------------------------------------------------------------------------------------------
// Adam

void Adam::infer() {
  const size_t count = get_input_size();
  require(count == 7 || count == 8, "takes 7 or 8 inputs, got ", count);
  require_tensors(0, 4);
  require_numbers(4, 7);
  require_tensors(7, count);
  set_outputs(count - 4);
}

void Adam::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto size = static_cast<int64_t>(inputs[0].get_size());
  const auto as_float = [](double value) { return static_cast<float>(value); };
  const float rate = number(inputs[4]);
  const float root = std::sqrt(1.0F - number(inputs[6]));
  const AdamStep step{as_float(attributes().beta1),
                      as_float(attributes().beta2),
                      rate * (root / (1.0F - number(inputs[5]))),
                      as_float(attributes().epsilon) * root,
                      rate * as_float(attributes().ratio) * as_float(attributes().decay),
                      attributes().decays,
                      __builtin_cpu_supports("avx512f") != 0};
  const bool has_largest = inputs.size() == 8;
  each_chunk(size, [&](int64_t first, int64_t count) {
    adam_chunk(step, count, numbers(inputs[0]) + first, numbers(inputs[1]) + first,
               numbers(inputs[2]) + first, numbers(inputs[3]) + first,
               has_largest ? numbers(inputs[7]) + first : nullptr, numbers((*outputs)[0]) + first,
               numbers((*outputs)[1]) + first, numbers((*outputs)[2]) + first,
               has_largest ? numbers((*outputs)[3]) + first : nullptr);
  });
}

}  // namespace paddle_ngraph
