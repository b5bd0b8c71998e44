// Loops over the planes of a pooling; a plane is one channel of one sample, or one block of
// channels.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ov/work_division.h"

namespace paddle_ngraph {

// The range of inputs under one output's window along one axis, without padding.
struct PoolWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t divisor = 0;  // number by which the sum of an average pooling is divided
};

// Sizes of one plane (height and width of one sample and channel, or block) of input and output.
struct Plane {
  int64_t height = 0;
  int64_t width = 0;
  int64_t out_height = 0;
  int64_t out_width = 0;
  int64_t block = 1;  // number of channels that are adjacent in memory

  int64_t size() const { return height * width * block; }
  int64_t out_size() const { return out_height * out_width * block; }
};

// The outputs j of a row, begin <= j < end, whose windows have an element inside the input at one
// offset: x[first + j * stride].
struct Stripe {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;
};

// Sizes and windows for pooling the planes of one tensor.
struct Pooling {
  // With `along_rows` no window is adaptive: `first` is the start of the first window in a row, and
  // `kernel` is the width of each window.
  Pooling(const Plane& plane, std::vector<PoolWindow> rows, std::vector<PoolWindow> columns,
          bool adaptive, int64_t kernel, int64_t stride, int64_t first);

  // The rows of the output whose windows cover at least one of these rows of the input.
  Range windows_over(const Range& rows) const;

  Plane plane;
  std::vector<PoolWindow> rows, columns;
  bool along_rows;  // whether a row of outputs is computed one offset of the window at a time
  int64_t stride;   // distance between the starts of adjacent windows along a row
  std::vector<Stripe> stripes;
};

// Each of these processes one plane, whose first elements `x`, `out` and the other pointers
// address: the poolings compute a range of the output's rows, and the gradients a range of the
// input's rows. Gradients are set, not accumulated.
void max_pool(const Pooling& pooling, const Range& rows, const float* x, float* out);
// `match`: buffer with as many elements as a row of the output.
void max_pool_grad(const Pooling& pooling, const Range& rows, const float* x, const float* out,
                   const float* grad, std::vector<int32_t>* match, float* x_grad);
void max_pool_with_index(const Pooling& pooling, const Range& rows, const float* x, float* out,
                         int32_t* mask);
void average_pool(const Pooling& pooling, const Range& rows, const float* x, float* out);
void average_pool_grad(const Pooling& pooling, const Range& rows, const float* grad, float* x_grad);

}  // namespace paddle_ngraph
