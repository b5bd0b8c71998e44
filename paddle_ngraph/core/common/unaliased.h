// Rows of a matrix that is walked down its columns.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// Floats from one row of `length` to the next. Elements that lie a multiple of 2 KiB apart share a
// few sets of the first cache, and a walk from one to the next takes twice as long: such rows are
// padded.
constexpr int64_t unaliased(int64_t length) {
  constexpr int64_t kAliased = 512, kPadding = 32;
  return length % kAliased == 0 ? length + kPadding : length;
}

}  // namespace paddle_ngraph
