#include "core/ov/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"

namespace paddle_ngraph {

namespace {

// Calls body(lane, index) for every float of rows of kBlock floats, or of their width where kBlock
// is 0. Rows of one float are contiguous.
template <int64_t kBlock, typename Body>
NGRAPH_INLINE inline void each_row(const ChannelRows& rows, const Body& body) {
  const int64_t width = kBlock > 0 ? kBlock : rows.width;
  const int64_t stride = kBlock == 1 ? 1 : rows.stride;
  for (int64_t row = 0; row < rows.count; ++row) {
    for (int64_t lane = 0; lane < width; ++lane) body(lane, row * stride + lane);
  }
}

// One value for each channel of a block, copied from memory: the compiler then knows that no store
// to the output of a loop changes the values.
template <int64_t kBlock>
class PerLane {
 public:
  explicit PerLane(const float* values) { std::copy_n(values, kBlock, values_); }
  float operator[](int64_t lane) const { return values_[lane]; }

 private:
  float values_[kBlock];
};

template <>
class PerLane<0> {
 public:
  explicit PerLane(const float* values) : values_(values) {}
  float operator[](int64_t lane) const { return values_[lane]; }

 private:
  const float* values_;
};

// Calls function(width of the rows) with the usual widths as compile-time constants; 0: any other.
template <typename Function>
NGRAPH_INLINE inline void with_width(const ChannelRows& rows, const Function& function) {
  if (rows.width == 1 && rows.stride == 1) {
    function(std::integral_constant<int64_t, 1>{});
  } else if (rows.width == 8) {
    function(std::integral_constant<int64_t, 8>{});
  } else if (rows.width == 16) {
    function(std::integral_constant<int64_t, 16>{});
  } else if (rows.width == kWidestRows) {
    function(std::integral_constant<int64_t, kWidestRows>{});
  } else {
    function(std::integral_constant<int64_t, 0>{});
  }
}

// For each lane of the rows, computes the mean, and the sum of squared distances from the mean.
template <int64_t kBlock>
NGRAPH_INLINE inline void moments_of(const float* x, const ChannelRows& rows, float* mean,
                                     float* square) {
  constexpr int64_t kWidth = kBlock > 0 ? kBlock : 1;
  const auto count = static_cast<float>(rows.count);
  if constexpr (kBlock > 0) {
    float sum[kWidth] = {}, total[kWidth] = {};
    each_row<kBlock>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE { sum[lane] += x[i]; });
    for (int64_t lane = 0; lane < kWidth; ++lane) sum[lane] /= count;
    each_row<kBlock>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float distance = x[i] - sum[lane];
      total[lane] += distance * distance;
    });
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      mean[lane] = sum[lane];
      square[lane] = total[lane];
    }
  } else {
    for (int64_t lane = 0; lane < rows.width; ++lane) mean[lane] = square[lane] = 0.0F;
    each_row<0>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE { mean[lane] += x[i]; });
    for (int64_t lane = 0; lane < rows.width; ++lane) mean[lane] /= count;
    each_row<0>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float distance = x[i] - mean[lane];
      square[lane] += distance * distance;
    });
  }
}

// Calls function(rectify), the ReLU. As in plain Paddle, NaN becomes 0 if there is no ceiling, and
// stays NaN if there is one.
template <typename Function>
NGRAPH_INLINE inline void with_relu(const Bounds& bounds, const Function& function) {
  const float low = bounds.low, high = bounds.high;
  if (std::isnan(low)) {
    function([](float value) NGRAPH_INLINE { return value; });
  } else if (std::isnan(high)) {
    function([=](float value) NGRAPH_INLINE { return value > low ? value : low; });
  } else {
    function([=](float value) NGRAPH_INLINE {
      value = value < low ? low : value;
      return value > high ? high : value;
    });
  }
}

// Calls function(value), where value(i) returns element i of the gradient before the ReLU.
template <typename Function>
NGRAPH_INLINE inline void with_gradient(const ReluGradient& g, const Function& function) {
  const float* grad = g.grad;
  const float* y = g.y;
  const float low = g.bounds.low, high = g.bounds.high;
  if (y == nullptr) {
    function([=](int64_t i) NGRAPH_INLINE { return grad[i]; });
  } else {
    function([=](int64_t i) NGRAPH_INLINE {
      return grad[i] * ((y[i] > low) & !(y[i] >= high) ? 1.0F : 0.0F);
    });
  }
}

template <int64_t kBlock, typename Value>
NGRAPH_INLINE inline void products_of(const float* x, const Value& grad, const ChannelRows& rows,
                                      const float* mean, float* sum, float* product) {
  if constexpr (kBlock > 0) {
    float sums[kBlock] = {}, products[kBlock] = {}, middle[kBlock];
    for (int64_t lane = 0; lane < kBlock; ++lane) middle[lane] = mean[lane];
    // Two passes over the rows, which are in the cache: compilers do not vectorize a single loop
    // for `sums` and `products`.
    each_row<kBlock>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE { sums[lane] += grad(i); });
    each_row<kBlock>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      products[lane] += grad(i) * (x[i] - middle[lane]);
    });
    for (int64_t lane = 0; lane < kBlock; ++lane) {
      sum[lane] = sums[lane];
      product[lane] = products[lane];
    }
  } else {
    for (int64_t lane = 0; lane < rows.width; ++lane) sum[lane] = product[lane] = 0.0F;
    each_row<0>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float value = grad(i);
      sum[lane] += value;
      product[lane] += value * (x[i] - mean[lane]);
    });
  }
}

}  // namespace

NGRAPH_VECTORIZED void chunk_moments(const float* x, const ChannelRows& rows, float* mean,
                                     float* square) {
  with_width(rows, [&](auto size) NGRAPH_INLINE { moments_of<size>(x, rows, mean, square); });
}

NGRAPH_VECTORIZED void row_moments(const float* x, int64_t pixels, float* mean, float* square) {
  const float sum = sum_of(pixels, [=](int64_t i) NGRAPH_INLINE { return x[i]; });
  const float middle = sum / static_cast<float>(pixels);
  *square =
      sum_of(pixels, [=](int64_t i) NGRAPH_INLINE { return (x[i] - middle) * (x[i] - middle); });
  *mean = middle;
}

NGRAPH_VECTORIZED void scale_rows(const float* x, const ChannelRows& rows, const float* factor,
                                  const float* offset, const Bounds& bounds, float* y) {
  with_relu(bounds, [&](const auto& apply_relu) NGRAPH_INLINE {
    with_width(rows, [&](auto size) NGRAPH_INLINE {
      const PerLane<size> factors(factor), offsets(offset);
      each_row<size>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
        y[i] = apply_relu(x[i] * factors[lane] + offsets[lane]);
      });
    });
  });
}

NGRAPH_VECTORIZED void chunk_products(const float* x, const ReluGradient& g,
                                      const ChannelRows& rows, const float* mean, float* sum,
                                      float* product) {
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    with_width(rows, [&](auto size)
                         NGRAPH_INLINE { products_of<size>(x, grad, rows, mean, sum, product); });
  });
}

NGRAPH_VECTORIZED void row_products(const float* x, const ReluGradient& g, int64_t pixels,
                                    float mean, float* sum, float* product) {
  const int64_t even = pixels / kLanes * kLanes;
  float means[kLanes], sums[kLanes], products[kLanes];
  for (float& lane : means) lane = mean;
  *sum = *product = 0.0F;
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    products_of<kLanes>(x, grad, {even / kLanes, kLanes, kLanes}, means, sums, products);
    for (int64_t i = even; i < pixels; ++i) {
      *sum += grad(i);
      *product += grad(i) * (x[i] - mean);
    }
  });
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    *sum += sums[lane];
    *product += products[lane];
  }
}

NGRAPH_VECTORIZED void grad_rows(const float* x, const ReluGradient& g, const ChannelRows& rows,
                                 const GradFactors& f, float* x_grad) {
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    with_width(rows, [&](auto size) NGRAPH_INLINE {
      const PerLane<size> shift(f.shift), factor(f.factor), mean(f.mean), slope(f.slope);
      each_row<size>(rows, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
        x_grad[i] = (grad(i) - shift[lane] - (x[i] - mean[lane]) * slope[lane]) * factor[lane];
      });
    });
  });
}

}  // namespace paddle_ngraph
