// The layout of the convolutions: channels in blocks, [N, ceil(C / block), H, W, block]. If C is
// not a multiple of the block, the last lanes of the last block are padding.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

inline int64_t blocks_of(int64_t channels, int64_t block) { return (channels + block - 1) / block; }

// Sets the lanes from `first` on to 0, in each pixel of a block [pixels, block].
inline void clear_lanes(float* data, int64_t pixels, int64_t block, int64_t first) {
  for (int64_t lane = first; lane < block; ++lane) {
    for (int64_t at = 0; at < pixels; ++at) data[at * block + lane] = 0.0F;
  }
}

}  // namespace paddle_ngraph
