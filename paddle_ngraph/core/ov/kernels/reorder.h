// Channels of one block: from planes, [channel][position], to [position][lane], and back; and from
// blocks to others.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// Where `count` channels lie in both layouts.
struct ChannelBlock {
  int64_t pixels = 0;  // positions of a plane
  int64_t count = 0;   // channels, at most as many as a block has
  int64_t block = 0;   // lanes of a position
};

// to[position][channel] = from[channel][position]; other lanes are left.
void gather_channels(const float* from, const ChannelBlock& size, float* to);

// to[channel][position] = from[position][channel].
void scatter_channels(const float* from, const ChannelBlock& size, float* to);

// Both sides in blocks, those of `from` of `from_block` lanes. `count` is no more than the wider of
// both has, and other lanes are left.
void regroup_channels(const float* from, int64_t from_block, const ChannelBlock& size, float* to);

}  // namespace paddle_ngraph
