// Rounding to bfloat16, for all that multiplies in it.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

// The bits of the nearest bfloat16 of each number, ties to even. NaN stays NaN.
NGRAPH_VECTORIZED static void round_to_bfloat16(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;  // of a NaN, which rounding could make infinite
    to[i] = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
  }
}

}  // namespace paddle_ngraph
