// Reorders channels of one block: from planes, [channel][pixel], to [pixel][lane], and back; and
// between blocks of different sizes.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// The channels that are copied between layouts: those that both have in one block.
struct ChannelBlock {
  int64_t pixels = 0;  // number of pixels in a plane
  int64_t count = 0;   // number of channels, at most `block`
  int64_t block = 0;   // number of lanes per pixel
};

// Copies to[pixel][channel] = from[channel][pixel]; other lanes of `to` are not written.
void gather_channels(const float* from, const ChannelBlock& size, float* to);

// Copies to[channel][pixel] = from[pixel][channel].
void scatter_channels(const float* from, const ChannelBlock& size, float* to);

// Copies from blocks of `from_block` lanes to blocks of `size.block` lanes. `count` is at most the
// number of lanes of the wider block; other lanes are not written.
void regroup_channels(const float* from, int64_t from_block, const ChannelBlock& size, float* to);

}  // namespace paddle_ngraph
