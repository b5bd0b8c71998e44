#include "core/ov/kernels/reorder.h"

#include <algorithm>
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

// How far apart neighbours are. Either positions or channels lie side by side.
struct Steps {
  int64_t place;
  int64_t channel;

  NGRAPH_INLINE int64_t to(int64_t at, int64_t number) const {
    return at * place + number * channel;
  }
  NGRAPH_INLINE int64_t row() const { return place * channel; }
};

// What lies side by side on one side does not on the other.
NGRAPH_INLINE inline void turn(const float* from, const Steps& given, const ChannelBlock& size,
                               float* to, const Steps& made) {
  const auto copy = [&](int64_t at, int64_t channel) {
    to[made.to(at, channel)] = from[given.to(at, channel)];
  };
  const int64_t whole_places = size.places / kSide * kSide;
  const int64_t whole_count = size.count / kSide * kSide;
  for (int64_t at = 0; at < whole_places; at += kSide) {
    for (int64_t channel = 0; channel < whole_count; channel += kSide) {
      transpose(from + given.to(at, channel), given.row(), to + made.to(at, channel), made.row());
    }
    for (int64_t channel = whole_count; channel < size.count; ++channel) {
      for (int64_t i = at; i < at + kSide; ++i) copy(i, channel);
    }
  }
  for (int64_t at = whole_places; at < size.places; ++at) {
    for (int64_t channel = 0; channel < size.count; ++channel) copy(at, channel);
  }
}

}  // namespace

NGRAPH_VECTORIZED void gather_channels(const float* from, const ChannelBlock& size, float* to) {
  turn(from, {1, size.places}, size, to, {size.block, 1});
}

NGRAPH_VECTORIZED void scatter_channels(const float* from, const ChannelBlock& size, float* to) {
  turn(from, {size.block, 1}, size, to, {1, size.places});
}

NGRAPH_VECTORIZED void regroup_channels(const float* from, int64_t from_block,
                                        const ChannelBlock& size, float* to) {
  const auto [places, count, to_block] = size;
  if (from_block == to_block && count == to_block) {
    std::memcpy(to, from, sizeof(float) * static_cast<size_t>(places * count));
    return;
  }
  const int64_t step = from_block % kSide + to_block % kSide == 0 ? kSide : 1;
  for (int64_t first = 0; first < count; first += step) {
    const int64_t together = std::min(step, count - first);
    const float* source = from + first / from_block * places * from_block + first % from_block;
    float* target = to + first / to_block * places * to_block + first % to_block;
    for (int64_t at = 0; at < places; ++at) {
      if (together == kSide) {
        std::memcpy(target + at * to_block, source + at * from_block, sizeof(Vector));
      } else {
        std::copy_n(source + at * from_block, together, target + at * to_block);
      }
    }
  }
}

}  // namespace paddle_ngraph
