// Softmax of one row, as Paddle's kernel computes it.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// x [length] -> y = exp(s) / sum(exp(s)) with s = max(x - max(x), -64); see RowSoftmax. x and y do
// not overlap.
void softmax_row(const float* x, int64_t length, float* y);

}  // namespace paddle_ngraph
