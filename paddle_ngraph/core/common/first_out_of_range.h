// Whole numbers that are positions, on both sides of the boundary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// The first of these numbers that is not low[n] <= number < high[n], nor one of `ignored`; `count`
// if there is none. The last axis is as long as the bounds are, n the place on it; or they have one
// for all numbers.
template <typename Id>
size_t first_out_of_range(const Id* ids, size_t count, const std::vector<int64_t>& low,
                          const std::vector<int64_t>& high, const std::vector<int64_t>& ignored) {
  const size_t bounds = low.size();
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int64_t>(ids[i]);
    const size_t n = bounds == 1 ? 0 : i % bounds;
    if (id >= low[n] && id < high[n]) continue;
    if (std::find(ignored.begin(), ignored.end(), id) == ignored.end()) return i;
  }
  return count;
}

}  // namespace paddle_ngraph
