// Guards of functions with symbolic sizes: conditions on these sizes under which a function is
// valid. paddle_ngraph/conversion/symbolic_sizes.py creates the guards.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// Whether all guards hold for the symbolic sizes `sizes`. For each guard `words` contains the count
// of words that follow, the type of the guard, and a program for a stack machine. A guard that is
// malformed, divides by zero or overflows 64 bits does not hold.
bool guards_hold(const std::vector<int64_t>& words, const std::vector<int64_t>& sizes);

}  // namespace paddle_ngraph
