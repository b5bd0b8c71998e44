// Loops of batch normalization over the rows of a block of channels.
#pragma once

#include <cstdint>
#include <limits>

namespace paddle_ngraph {

// The bounds of a ReLU. NaN means no bound, since every comparison with it is false.
struct Bounds {
  float low = std::numeric_limits<float>::quiet_NaN();
  float high = std::numeric_limits<float>::quiet_NaN();
};

// The gradient of the input of the ReLU: that of y, multiplied by one or zero.
struct ReluGradient {
  const float* grad;
  const float* y;  // the output of the ReLU after the normalization; nullptr: no ReLU
  Bounds bounds;

  ReluGradient at(int64_t offset) const {
    return {grad + offset, y ? y + offset : nullptr, bounds};
  }
};

// The largest number of channels whose sums fit in registers.
constexpr int64_t kWidestRows = 64;

// Rows of `width` floats, one for each channel of a block, `stride` floats apart.
struct ChannelRows {
  int64_t count;
  int64_t width;
  int64_t stride;
};

// Mean and sum of squared distances from it, of each channel of a chunk.
void chunk_moments(const float* x, const ChannelRows& rows, float* mean, float* square);
// chunk_moments for a single channel.
void row_moments(const float* x, int64_t pixels, float* mean, float* square);

// y = x * factor + offset, followed by the ReLU.
void scale_rows(const float* x, const ChannelRows& rows, const float* factor, const float* offset,
                const Bounds& bounds, float* y);

// The sums of grad and of grad * (x - mean), of each channel of a chunk.
void chunk_products(const float* x, const ReluGradient& g, const ChannelRows& rows,
                    const float* mean, float* sum, float* product);
// As chunk_products, for data of a single channel.
void row_products(const float* x, const ReluGradient& g, int64_t pixels, float mean, float* sum,
                  float* product);

// x_grad = ((grad - shift) - (x - mean) * slope) * factor: in this order, as in plain Paddle, an
// infinite scale multiplies a finite value, and no infinities are subtracted from each other.
struct GradFactors {
  const float* shift;
  const float* factor;
  const float* mean;
  const float* slope;
};

void grad_rows(const float* x, const ReluGradient& g, const ChannelRows& rows,
               const GradFactors& factors, float* x_grad);

}  // namespace paddle_ngraph
