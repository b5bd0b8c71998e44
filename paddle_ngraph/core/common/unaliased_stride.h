// A row stride for matrices read by columns, with which a column does not share cache sets.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// Stride, in floats, between rows of `length` floats. Elements that are a multiple of 2 KiB apart
// share a few sets of the L1 cache, and reading them one after another takes twice as long: such
// rows are padded.
constexpr int64_t unaliased_stride(int64_t length) {
  constexpr int64_t kAliasedFloats = 512, kPaddingFloats = 32;
  return length % kAliasedFloats == 0 ? length + kPaddingFloats : length;
}

}  // namespace paddle_ngraph
