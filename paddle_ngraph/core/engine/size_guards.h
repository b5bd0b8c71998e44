// Guards of functions with open shapes: conditions on the open sizes under which a function is
// right. paddle_ngraph/function/sizes.py makes them.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// Whether all guards hold where the open sizes are `sizes`. Of each guard `words` tell how many
// words follow, its kind, and a program for a stack machine. What is malformed, divides by zero or
// leaves 64 bits does not hold.
bool guards_hold(const std::vector<int64_t>& words, const std::vector<int64_t>& sizes);

}  // namespace paddle_ngraph
