// Loops over the elements of a tensor that is clipped by its norm.
#pragma once

#include <cstdint>

namespace paddle_ngraph {

// The sum of the squares of `count` floats, at most a few thousand, computed in float32.
float sum_of_squares(const float* x, int64_t count);

// Computes product[i] = x[i] * factor; `product` may be `x`.
void scale(const float* x, int64_t count, float factor, float* product);

}  // namespace paddle_ngraph
