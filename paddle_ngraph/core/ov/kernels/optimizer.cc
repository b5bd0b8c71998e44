#include "core/ov/kernels/optimizer.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/common/error.h"
#include "core/common/vectorized.h"

namespace paddle_ngraph {

namespace {

float as_float(double value) { return static_cast<float>(value); }

NGRAPH_VECTORIZED void sgd_chunk(float rate, int64_t count, const float* __restrict__ grad,
                                 float* __restrict__ param) {
  for (int64_t i = 0; i < count; ++i) param[i] -= rate * grad[i];
}

class SgdUpdate final : public OptimizerUpdate {
 public:
  explicit SgdUpdate(float rate) : rate_(rate) {}

  void update(int64_t count, const float* grad, float* const* states) const override {
    sgd_chunk(rate_, count, grad, states[0]);
  }

 private:
  float rate_;
};

struct MomentumScalars {
  float mu, rate, decay;
  bool nesterov, decays;
};

NGRAPH_VECTORIZED void momentum_chunk(const MomentumScalars& step, int64_t count,
                                      const float* __restrict__ grad, float* __restrict__ param,
                                      float* __restrict__ velocity) {
  const float mu = step.mu, rate = step.rate, decay = step.decay;
  const float* g = grad;
  float decayed[kStepChunk];
  if (step.decays) {
    for (int64_t i = 0; i < count; ++i) decayed[i] = param[i] * decay + grad[i];
    g = decayed;
  }
  for (int64_t i = 0; i < count; ++i) velocity[i] = velocity[i] * mu + g[i];
  if (step.nesterov) {
    for (int64_t i = 0; i < count; ++i) param[i] -= (g[i] + velocity[i] * mu) * rate;
  } else {
    for (int64_t i = 0; i < count; ++i) param[i] -= rate * velocity[i];
  }
}

class MomentumUpdate final : public OptimizerUpdate {
 public:
  explicit MomentumUpdate(const MomentumScalars& scalars) : scalars_(scalars) {}

  void update(int64_t count, const float* grad, float* const* states) const override {
    momentum_chunk(scalars_, count, grad, states[0], states[1]);
  }

 private:
  MomentumScalars scalars_;
};

struct AdamScalars {
  float beta1, beta2, rate, epsilon, share;
  bool decays, keeps_largest;
};

// Updates a chunk of a parameter by Adam; `moment2_max` is null except for the variant AMSGrad.
NGRAPH_VECTORIZED void adam_chunk(const AdamScalars& step, int64_t count,
                                  const float* __restrict__ grad, float* __restrict__ param,
                                  float* __restrict__ moment1, float* __restrict__ moment2,
                                  float* __restrict__ moment2_max) {
  const float beta1 = step.beta1, beta2 = step.beta2;
  const float new1 = 1.0F - beta1, new2 = 1.0F - beta2;
  const float rate = step.rate, epsilon = step.epsilon, share = step.share;
  for (int64_t i = 0; i < count; ++i) moment1[i] = beta1 * moment1[i] + new1 * grad[i];
  for (int64_t i = 0; i < count; ++i) {
    moment2[i] = beta2 * moment2[i] + new2 * grad[i] * grad[i];
  }
  const float* below_root = moment2;
  if (moment2_max != nullptr) {
    // Of a NaN and a number Paddle selects the newer one, but its AVX-512 kernel the older one.
    if (step.keeps_largest) {
      for (int64_t i = 0; i < count; ++i) {
        moment2_max[i] = moment2[i] > moment2_max[i] ? moment2[i] : moment2_max[i];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        moment2_max[i] = moment2_max[i] > moment2[i] ? moment2_max[i] : moment2[i];
      }
    }
    below_root = moment2_max;
  }
  if (step.decays) {
    for (int64_t i = 0; i < count; ++i) param[i] -= share * param[i];
  }
  for (int64_t i = 0; i < count; ++i) {
    param[i] -= rate * (moment1[i] / (std::sqrt(below_root[i]) + epsilon));
  }
}

class AdamUpdate final : public OptimizerUpdate {
 public:
  AdamUpdate(const AdamScalars& scalars, bool has_largest)
      : scalars_(scalars), has_largest_(has_largest) {}

  void update(int64_t count, const float* grad, float* const* states) const override {
    adam_chunk(scalars_, count, grad, states[0], states[1], states[2],
               has_largest_ ? states[3] : nullptr);
  }

 private:
  AdamScalars scalars_;
  bool has_largest_;
};

NGRAPH_VECTORIZED void sum_chunk(int64_t count, const float* __restrict__ added,
                                 float* __restrict__ sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += added[i];
}

class SumUpdate final : public OptimizerUpdate {
 public:
  void update(int64_t count, const float* grad, float* const* states) const override {
    sum_chunk(count, grad, states[0]);
  }
};

class FillUpdate final : public OptimizerUpdate {
 public:
  explicit FillUpdate(float value) : value_(value) {}

  void update(int64_t count, const float* /*grad*/, float* const* states) const override {
    std::fill_n(states[0], count, value_);
  }

 private:
  float value_;
};

template <typename Attributes>
Attributes filled(const std::vector<double>& values) {
  Attributes attributes;
  size_t next = 0;
  attributes.visit([&](const char* /*name*/, auto& value) {
    if (next == values.size()) throw NgraphError("an attribute of an optimizer is missing");
    value = static_cast<std::decay_t<decltype(value)>>(values[next++]);
  });
  if (next != values.size()) throw NgraphError("an optimizer has too many attributes");
  return attributes;
}

void require(bool fits) {
  if (!fits) throw NgraphError("an optimizer has other numbers or states");
}

}  // namespace

std::unique_ptr<OptimizerUpdate> step_of(const SgdAttributes& /*attributes*/, const float* scalars,
                                         size_t /*num_states*/) {
  return std::make_unique<SgdUpdate>(scalars[0]);
}

std::unique_ptr<OptimizerUpdate> step_of(const MomentumAttributes& attributes, const float* scalars,
                                         size_t /*num_states*/) {
  return std::make_unique<MomentumUpdate>(MomentumScalars{as_float(attributes.mu), scalars[0],
                                                          as_float(attributes.decay),
                                                          attributes.nesterov, attributes.decays});
}

std::unique_ptr<OptimizerUpdate> step_of(const AdamAttributes& attributes, const float* scalars,
                                         size_t num_states) {
  const float rate = scalars[0];
  const float root = std::sqrt(1.0F - scalars[2]);
  const AdamScalars step{as_float(attributes.beta1),
                         as_float(attributes.beta2),
                         rate * (root / (1.0F - scalars[1])),
                         as_float(attributes.epsilon) * root,
                         rate * as_float(attributes.ratio) * as_float(attributes.decay),
                         attributes.decays,
                         __builtin_cpu_supports("avx512f") != 0};
  return std::make_unique<AdamUpdate>(step, num_states == 4);
}

std::unique_ptr<OptimizerUpdate> step_of(Optimizer optimizer, const std::vector<double>& attributes,
                                         const std::vector<float>& scalars, size_t num_states) {
  switch (optimizer) {
    case Optimizer::kSgd:
      require(scalars.size() == 1 && num_states == 1);
      return step_of(filled<SgdAttributes>(attributes), scalars.data(), num_states);
    case Optimizer::kMomentum:
      require(scalars.size() == 1 && num_states == 2);
      return step_of(filled<MomentumAttributes>(attributes), scalars.data(), num_states);
    case Optimizer::kAdam:
      require(scalars.size() == 3 && (num_states == 3 || num_states == 4));
      return step_of(filled<AdamAttributes>(attributes), scalars.data(), num_states);
    case Optimizer::kSum:
      require(attributes.empty() && scalars.empty() && num_states == 1);
      return std::make_unique<SumUpdate>();
    case Optimizer::kFill:
      require(attributes.size() == 1 && scalars.empty() && num_states == 1);
      return std::make_unique<FillUpdate>(as_float(attributes[0]));
  }
  throw NgraphError("an optimizer is not known");
}

}  // namespace paddle_ngraph
