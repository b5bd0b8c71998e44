// Sums over a row.
#pragma once

#include <cstdint>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

// Independent partial sums of a row.
constexpr int64_t kLanes = 16;

// The sum of term(i) for i in [0, count).
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

}  // namespace paddle_ngraph
