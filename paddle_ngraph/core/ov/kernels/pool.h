// Loops over the planes of a pooling; a plane is one channel of one sample, or one block of
// channels.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ov/work_division.h"

namespace paddle_ngraph {

// The window of one output index along one axis, clipped to the input.
struct PoolWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t divisor = 0;  // divisor of an average
};

// The sizes of one plane (image) of the input and of the output of a pooling.
struct Plane {
  int64_t height = 0;
  int64_t width = 0;
  int64_t out_height = 0;
  int64_t out_width = 0;
  int64_t block = 1;  // number of adjacent channels in memory

  int64_t size() const { return height * width * block; }
  int64_t out_size() const { return out_height * out_width * block; }
};

// The columns of one row at one offset within the windows: output j reads x[first + j * stride].
struct Stripe {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;
};

// Parameters of pooling the planes of one tensor.
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
  int64_t stride;   // distance of windows along a row
  std::vector<Stripe> stripes;
};

// Each of these processes one plane, whose first elements `x`, `out` and the other pointers
// address: the poolings compute a range of the output's rows, and the gradients a range of the
// input's rows. Gradients are set, not accumulated.
void max_pool(const Pooling& pooling, const Range& rows, const float* x, float* out);
// `match`: scratch memory, resized to as many elements as an output row has.
void max_pool_grad(const Pooling& pooling, const Range& rows, const float* x, const float* out,
                   const float* grad, std::vector<int32_t>* match, float* x_grad);
void max_pool_with_index(const Pooling& pooling, const Range& rows, const float* x, float* out,
                         int32_t* mask);
void average_pool(const Pooling& pooling, const Range& rows, const float* x, float* out);
void average_pool_grad(const Pooling& pooling, const Range& rows, const float* grad, float* x_grad);

}  // namespace paddle_ngraph
