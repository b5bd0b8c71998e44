// Conversion between float32 and bfloat16, as in Paddle's casts.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

// Bits of the bfloat16 value nearest to a float32, given by its bits; ties to even. All NaNs become
// one NaN.
NGRAPH_INLINE inline uint32_t nearest_bfloat16(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded;
}

[[maybe_unused]] NGRAPH_VECTORIZED static void round_to_bfloat16(const float* from, int64_t count,
                                                                 uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    to[i] = static_cast<uint16_t>(nearest_bfloat16(bits));
  }
}

// Converts bfloat16 values to float32.
[[maybe_unused]] NGRAPH_VECTORIZED static void round_as_bfloat16(const float* from, int64_t count,
                                                                 float* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    bits = nearest_bfloat16(bits) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

[[maybe_unused]] NGRAPH_VECTORIZED static void widen_bfloat16(const uint16_t* from, int64_t count,
                                                              float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof(bits));
  }
}

}  // namespace paddle_ngraph
