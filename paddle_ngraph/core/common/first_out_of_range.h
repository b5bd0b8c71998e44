// Range check of integer indices, shared by the OpenVINO and the Paddle side of the core.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// Index of the first element that is neither in low[n] <= element < high[n] nor one of `ignored`;
// `count` if there is none. n is the index on the last axis, whose length is that of the bounds;
// bounds of length 1 apply to all elements.
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
