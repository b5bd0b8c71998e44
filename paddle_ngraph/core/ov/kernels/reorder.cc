#include "core/ov/kernels/reorder.h"

#include <algorithm>
#include <cstring>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

namespace {

// Size of a tile that is transposed in registers: for a plain loop, compilers emit scalar loads and
// stores.
constexpr int64_t kTileSize = 8;

using Vector = float __attribute__((vector_size(kTileSize * sizeof(float))));

// Selects elements of two vectors a and b; an index counts through a, then b.
#if defined(__clang__)
#define NGRAPH_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
using PixelIndices = int32_t __attribute__((vector_size(kTileSize * sizeof(int32_t))));
#define NGRAPH_PICK(a, b, ...) __builtin_shuffle(a, b, PixelIndices{__VA_ARGS__})
#endif

// Transposes a tile: to[j][i] = from[i][j].
NGRAPH_INLINE inline void transpose(const float* from, int64_t from_row, float* to,
                                    int64_t to_row) {
  Vector rows[kTileSize], pairs[kTileSize], fours[kTileSize];
  for (int64_t i = 0; i < kTileSize; ++i)
    std::memcpy(&rows[i], from + i * from_row, sizeof(Vector));
  for (int64_t i = 0; i < kTileSize; i += 2) {
    pairs[i] = NGRAPH_PICK(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = NGRAPH_PICK(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int64_t half = 0; half < kTileSize; half += 4) {
    for (int64_t i = half; i < half + 2; ++i) {
      const int64_t at = half + 2 * (i - half);
      fours[at] = NGRAPH_PICK(pairs[i], pairs[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[at + 1] = NGRAPH_PICK(pairs[i], pairs[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int64_t i = 0; i < kTileSize / 2; ++i) {
    rows[i] = NGRAPH_PICK(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = NGRAPH_PICK(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int64_t i = 0; i < kTileSize; ++i) std::memcpy(to + i * to_row, &rows[i], sizeof(Vector));
}

#undef NGRAPH_PICK

// Distances in memory between adjacent pixels, and between adjacent channels; one of them is 1.
struct ElementStrides {
  int64_t pixel;
  int64_t channel;

  NGRAPH_INLINE int64_t to(int64_t at, int64_t number) const {
    return at * pixel + number * channel;
  }
  NGRAPH_INLINE int64_t row() const { return pixel * channel; }
};

// Copies a block of channels between two layouts, tile by tile where one of them has contiguous
// pixels and the other contiguous channels.
NGRAPH_INLINE inline void transpose_blocks(const float* from, const ElementStrides& given,
                                           const ChannelBlock& size, float* to,
                                           const ElementStrides& made) {
  const auto copy = [&](int64_t at, int64_t channel) {
    to[made.to(at, channel)] = from[given.to(at, channel)];
  };
  const int64_t full_tile_pixels = size.pixels / kTileSize * kTileSize;
  const int64_t whole_count = size.count / kTileSize * kTileSize;
  for (int64_t at = 0; at < full_tile_pixels; at += kTileSize) {
    for (int64_t channel = 0; channel < whole_count; channel += kTileSize) {
      transpose(from + given.to(at, channel), given.row(), to + made.to(at, channel), made.row());
    }
    for (int64_t channel = whole_count; channel < size.count; ++channel) {
      for (int64_t i = at; i < at + kTileSize; ++i) copy(i, channel);
    }
  }
  for (int64_t at = full_tile_pixels; at < size.pixels; ++at) {
    for (int64_t channel = 0; channel < size.count; ++channel) copy(at, channel);
  }
}

}  // namespace

NGRAPH_VECTORIZED void gather_channels(const float* from, const ChannelBlock& size, float* to) {
  transpose_blocks(from, {1, size.pixels}, size, to, {size.block, 1});
}

NGRAPH_VECTORIZED void scatter_channels(const float* from, const ChannelBlock& size, float* to) {
  transpose_blocks(from, {size.block, 1}, size, to, {1, size.pixels});
}

NGRAPH_VECTORIZED void regroup_channels(const float* from, int64_t from_block,
                                        const ChannelBlock& size, float* to) {
  const auto [pixels, count, to_block] = size;
  if (from_block == to_block && count == to_block) {
    std::memcpy(to, from, sizeof(float) * static_cast<size_t>(pixels * count));
    return;
  }
  const int64_t step = from_block % kTileSize + to_block % kTileSize == 0 ? kTileSize : 1;
  for (int64_t first = 0; first < count; first += step) {
    const int64_t together = std::min(step, count - first);
    const float* source = from + first / from_block * pixels * from_block + first % from_block;
    float* target = to + first / to_block * pixels * to_block + first % to_block;
    for (int64_t at = 0; at < pixels; ++at) {
      if (together == kTileSize) {
        std::memcpy(target + at * to_block, source + at * from_block, sizeof(Vector));
      } else {
        std::copy_n(source + at * from_block, together, target + at * to_block);
      }
    }
  }
}

}  // namespace paddle_ngraph
