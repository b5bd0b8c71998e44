#include "core/ov/kernels/softmax.h"

#include <limits>

#include "core/common/exponential.h"
#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"

namespace paddle_ngraph {

namespace {

// Lower bound of exponents: x minus the maximum is clamped to it, as in Paddle.
constexpr float kLowest = -64.0F;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The number of elements that Paddle's kernel processes at once. In these it clamps NaN, too:
// therefore all exponentials of a row of -inf are equal if no element remains; else the row becomes
// NaN.
constexpr int64_t kPaddleVectorLength = 8;

// The value that softmax subtracts from a row with the maximum `largest`.
NGRAPH_INLINE inline float shift_of(float largest, int64_t length) {
  const bool is_clamped = length % kPaddleVectorLength == 0;
  return is_clamped && largest == kNothing ? std::numeric_limits<float>::lowest() : largest;
}

}  // namespace

// Exponentials are summed as they are computed: the start of a long row has left the L1 cache when
// its last exponential is computed.
NGRAPH_VECTORIZED void softmax_row(const float* __restrict__ x, int64_t length,
                                   float* __restrict__ y) {
  const float largest = shift_of(largest_of(x, length, kNothing), length);
  const float total = sum_of(length, [=](int64_t i) NGRAPH_INLINE {
    const float shifted = x[i] - largest;  // at most 0, since the maximum is subtracted
    const auto [power, rest] = exponential_within(shifted < kLowest ? kLowest : shifted);
    const float exponential = power + power * rest;
    y[i] = exponential;
    return exponential;
  });
  const float inverse = 1.0F / total;
  for (int64_t i = 0; i < length; ++i) y[i] *= inverse;
}

}  // namespace paddle_ngraph
