// Guards of functions with open shapes: conditions on the open sizes under which a function is
// valid. They come from paddle_ngraph/conversion/symbolic_sizes.py.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// Whether all guards hold for the open sizes `sizes`. For each guard `words` gives how many words
// follow, its kind, and a program for a stack machine. A guard that is malformed, divides by zero
// or overflows 64 bits does not hold.
bool guards_hold(const std::vector<int64_t>& words, const std::vector<int64_t>& sizes);

}  // namespace paddle_ngraph
