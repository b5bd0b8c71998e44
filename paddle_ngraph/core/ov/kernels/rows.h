// Sum and maximum of a row of floats, vectorized.
#pragma once

#include <cstdint>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

// Number of independent partial sums (and maxima) of a row.
constexpr int64_t kLanes = 16;

// The sum of term(i) for i in [0, count), in vectorized order.
template <typename Term>
NGRAPH_INLINE inline float sum_of(int64_t count, const Term& term) {
  float sums[kLanes] = {};
  const int64_t even = count / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  float total = 0.0F;
  for (float part : sums) total += part;
  for (int64_t i = even; i < count; ++i) total += term(i);
  return total;
}

// The largest element of x, or `start` if none is larger; NaNs are skipped. Each comparison depends
// on the previous one: therefore several registers hold running maxima.
NGRAPH_INLINE inline float largest_of(const float* x, int64_t length, float start) {
  constexpr int64_t kWide = 4 * kLanes;
  float lanes[kWide];
  for (float& lane : lanes) lane = start;
  const int64_t even = length / kWide * kWide;
  for (int64_t i = 0; i < even; i += kWide) {
    for (int64_t lane = 0; lane < kWide; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  float largest = start;
  for (float lane : lanes) largest = lane > largest ? lane : largest;
  for (int64_t i = even; i < length; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

}  // namespace paddle_ngraph
