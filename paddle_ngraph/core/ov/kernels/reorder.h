// Reorders channels of one block: from planes, [channel][pixel], to [pixel][lane], and back; and
// between blocks of different sizes.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// The range of `count` channels that both layouts store.
struct ChannelBlock {
  int64_t pixels = 0;  // pixels of a plane
  int64_t count = 0;   // channels, at most the number of lanes
  int64_t block = 0;   // lanes of a pixel
};

// to[pixel][channel] = from[channel][pixel]; other lanes are not written.
void gather_channels(const float* from, const ChannelBlock& size, float* to);

// to[channel][pixel] = from[pixel][channel].
void scatter_channels(const float* from, const ChannelBlock& size, float* to);

// Copies from blocks of `from_block` lanes to blocks of `size.block` lanes. `count` is at most the
// number of lanes of the wider block; other lanes are not written.
void regroup_channels(const float* from, int64_t from_block, const ChannelBlock& size, float* to);

}  // namespace paddle_ngraph
