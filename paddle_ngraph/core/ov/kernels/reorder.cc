#include "core/ov/kernels/reorder.h"

#include <cstring>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

namespace {

// Transposed at a time, in registers: the compiler makes loads and stores of single numbers of a
// plain loop.
constexpr int64_t kSide = 8;

using Vector = float __attribute__((vector_size(kSide * sizeof(float))));

// Numbers of two vectors, by their places in both.
#if defined(__clang__)
#define NGRAPH_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
using Places = int32_t __attribute__((vector_size(kSide * sizeof(int32_t))));
#define NGRAPH_PICK(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// to[j][i] = from[i][j].
NGRAPH_INLINE inline void transpose(const float* from, int64_t from_row, float* to,
                                    int64_t to_row) {
  Vector rows[kSide], pairs[kSide], fours[kSide];
  for (int64_t i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * from_row, sizeof(Vector));
  for (int64_t i = 0; i < kSide; i += 2) {
    pairs[i] = NGRAPH_PICK(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = NGRAPH_PICK(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int64_t half = 0; half < kSide; half += 4) {
    for (int64_t i = half; i < half + 2; ++i) {
      const int64_t at = half + 2 * (i - half);
      fours[at] = NGRAPH_PICK(pairs[i], pairs[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[at + 1] = NGRAPH_PICK(pairs[i], pairs[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int64_t i = 0; i < kSide / 2; ++i) {
    rows[i] = NGRAPH_PICK(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = NGRAPH_PICK(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int64_t i = 0; i < kSide; ++i) std::memcpy(to + i * to_row, &rows[i], sizeof(Vector));
}

#undef NGRAPH_PICK

}  // namespace

NGRAPH_VECTORIZED void gather_channels(const float* from, const ChannelBlock& size, float* to) {
  const int64_t places = size.places, count = size.count, block = size.block;
  const int64_t whole_places = places / kSide * kSide, whole_count = count / kSide * kSide;
  for (int64_t at = 0; at < whole_places; at += kSide) {
    for (int64_t channel = 0; channel < whole_count; channel += kSide) {
      transpose(from + channel * places + at, places, to + at * block + channel, block);
    }
    for (int64_t channel = whole_count; channel < count; ++channel) {
      for (int64_t i = at; i < at + kSide; ++i)
        to[i * block + channel] = from[channel * places + i];
    }
  }
  for (int64_t at = whole_places; at < places; ++at) {
    for (int64_t channel = 0; channel < count; ++channel) {
      to[at * block + channel] = from[channel * places + at];
    }
  }
}

NGRAPH_VECTORIZED void scatter_channels(const float* from, const ChannelBlock& size, float* to) {
  const int64_t places = size.places, count = size.count, block = size.block;
  const int64_t whole_places = places / kSide * kSide, whole_count = count / kSide * kSide;
  for (int64_t at = 0; at < whole_places; at += kSide) {
    for (int64_t channel = 0; channel < whole_count; channel += kSide) {
      transpose(from + at * block + channel, block, to + channel * places + at, places);
    }
    for (int64_t channel = whole_count; channel < count; ++channel) {
      for (int64_t i = at; i < at + kSide; ++i)
        to[channel * places + i] = from[i * block + channel];
    }
  }
  for (int64_t at = whole_places; at < places; ++at) {
    for (int64_t channel = 0; channel < count; ++channel) {
      to[channel * places + at] = from[at * block + channel];
    }
  }
}

}  // namespace paddle_ngraph
