#include "core/ov/kernels/pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

namespace {

// Output rows of at least this length are computed one window offset at a time, along the row;
// shorter rows one window at a time.
constexpr int64_t kLongRow = 4;

// The value with which Paddle starts a maximum, and so its result for a window of -inf only.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// `a > b ? a : b`, not std::max: an earlier NaN is replaced by a later number, as in plain Paddle.
NGRAPH_INLINE inline float later_max(float so_far, float next) {
  return so_far > next ? so_far : next;
}

// Updates maxima with one stripe. kStride is the stride if that is known at compile time, else 0.
template <int64_t kStride>
NGRAPH_INLINE inline void max_stripe(const float* x, const Stripe& stripe, int64_t stride,
                                     float* out) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t j = stripe.begin; j < stripe.end; ++j) out[j] = later_max(out[j], x[j * step]);
}

NGRAPH_VECTORIZED void max_row(const float* x, int64_t width, const PoolWindow& rows,
                               const std::vector<Stripe>& columns, int64_t stride,
                               int64_t out_width, float* out) {
  std::fill(out, out + out_width, kLowest);
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (const auto& stripe : columns) {
      const float* source = x + h * width + stripe.first;
      if (stride == 1) {
        max_stripe<1>(source, stripe, stride, out);
      } else if (stride == 2) {
        max_stripe<2>(source, stripe, stride, out);
      } else {
        max_stripe<0>(source, stripe, stride, out);
      }
    }
  }
}

float max_window(const float* x, int64_t width, const PoolWindow& rows, const PoolWindow& columns) {
  float result = kLowest;
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) {
      result = later_max(result, x[h * width + w]);
    }
  }
  return result;
}

constexpr int32_t kNoMatch = std::numeric_limits<int32_t>::min();

// Stores `position` as match of each output that equals its element of the stripe.
template <int64_t kStride>
NGRAPH_INLINE inline void match_stripe(const float* x, const Stripe& stripe, int64_t stride,
                                       const float* out, int32_t position, int32_t* match) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t j = stripe.begin; j < stripe.end; ++j) {
    match[j] = x[j * step] == out[j] ? position : match[j];
  }
}

// The gradient of max pooling for a row of outputs: adds the gradient of each output to the first
// element of its window that equals the output. The search goes backwards, so that the first match
// is stored last, and has no branches, since the index of a window's maximum cannot be predicted.
// Elements outside `own` get no gradient here.
NGRAPH_VECTORIZED void match_row(const float* x, int64_t width, const PoolWindow& rows,
                                 const std::vector<Stripe>& columns, int64_t stride,
                                 const float* out, const float* grad, const Range& own,
                                 std::vector<int32_t>* match, float* x_grad) {
  std::fill(match->begin(), match->end(), kNoMatch);
  for (int64_t h = rows.end - 1; h >= rows.begin; --h) {
    for (auto stripe = columns.rbegin(); stripe != columns.rend(); ++stripe) {
      const int64_t first = h * width + stripe->first;
      const auto position = static_cast<int32_t>(first);
      if (stride == 1) {
        match_stripe<1>(x + first, *stripe, stride, out, position, match->data());
      } else if (stride == 2) {
        match_stripe<2>(x + first, *stripe, stride, out, position, match->data());
      } else {
        match_stripe<0>(x + first, *stripe, stride, out, position, match->data());
      }
    }
  }
  for (size_t j = 0; j < match->size(); ++j) {
    const int64_t position = (*match)[j] + static_cast<int64_t>(j) * stride;
    if (position >= own.begin && position < own.end) x_grad[position] += grad[j];
  }
}

void match_window(const float* x, int64_t width, const PoolWindow& rows, const PoolWindow& columns,
                  float out, float grad, const Range& own, float* x_grad) {
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) {
      const int64_t position = h * width + w;
      if (x[position] != out) continue;
      if (position >= own.begin && position < own.end) x_grad[position] += grad;
      return;
    }
  }
}

// Replaces each running maximum in `out`, and its index in `mask`, by the element of the stripe if
// that is larger.
template <int64_t kStride>
NGRAPH_INLINE inline void find_stripe(const float* x, const Stripe& stripe, int64_t stride,
                                      int32_t position, float* out, int32_t* mask) {
  const auto step = static_cast<int32_t>(kStride > 0 ? kStride : stride);
  const auto end = static_cast<int32_t>(stripe.end);
  for (auto j = static_cast<int32_t>(stripe.begin); j < end; ++j) {
    const float next = x[int64_t{j} * step];
    const bool larger = out[j] < next;  // false for NaN, so a NaN is never the maximum
    out[j] = larger ? next : out[j];
    mask[j] = larger ? position + j * step : mask[j];
  }
}

// Computes find_maximum() for a whole row of outputs, one offset within the windows at a time.
NGRAPH_VECTORIZED void find_row(const float* x, int64_t width, const PoolWindow& rows,
                                const std::vector<Stripe>& columns, int64_t stride,
                                int64_t out_width, float* out, int32_t* mask) {
  for (int64_t j = 0; j < out_width; ++j) out[j] = kLowest;
  for (int64_t j = 0; j < out_width; ++j) mask[j] = -1;
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (const auto& stripe : columns) {
      const int64_t first = h * width + stripe.first;
      const auto position = static_cast<int32_t>(first);
      if (stride == 1) {
        find_stripe<1>(x + first, stripe, stride, position, out, mask);
      } else if (stride == 2) {
        find_stripe<2>(x + first, stripe, stride, position, out, mask);
      } else {
        find_stripe<0>(x + first, stripe, stride, position, out, mask);
      }
    }
  }
}

// Returns the index of the first largest element of a window; -1 if no element is above kLowest.
int32_t find_maximum(const float* x, int64_t width, const PoolWindow& rows,
                     const PoolWindow& columns, float* maximum) {
  *maximum = kLowest;
  int64_t position = -1;
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) {
      if (!(*maximum < x[h * width + w])) continue;
      position = h * width + w;
      *maximum = x[position];
    }
  }
  return static_cast<int32_t>(position);
}

float sum_window(const float* x, int64_t width, const PoolWindow& rows, const PoolWindow& columns) {
  float sum = 0.0F;
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) sum += x[h * width + w];
  }
  return sum;
}

void add_window(float value, int64_t width, const PoolWindow& rows, const PoolWindow& columns,
                const Range& own, float* x) {
  for (int64_t h = std::max(rows.begin, own.begin); h < std::min(rows.end, own.end); ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) x[h * width + w] += value;
  }
}

// Poolings of tensors in blocked layout: each step computes kLanes adjacent channels.

constexpr int64_t kLanes = 8;
using FloatLanes = float __attribute__((vector_size(32), aligned(4), may_alias));
using IntLanes = int32_t __attribute__((vector_size(32)));

// Windows along one axis: all of them, or a range of outputs.
struct Windows {
  explicit Windows(const std::vector<PoolWindow>& windows)
      : first(windows.data()), last(first + windows.size()) {}
  Windows(const std::vector<PoolWindow>& windows, const Range& range)
      : first(windows.data() + range.begin), last(windows.data() + range.end) {}
  const PoolWindow* first;
  const PoolWindow* last;
};

NGRAPH_VECTORIZED void max_lanes(const float* x, const Plane& plane, const Windows& rows,
                                 const Windows& columns, float* out) {
  for (const auto* row = rows.first; row < rows.last; ++row) {
    for (const auto* column = columns.first; column < columns.last; ++column) {
      FloatLanes maximum = FloatLanes{} + kLowest;
      for (int64_t h = row->begin; h < row->end; ++h) {
        for (int64_t w = column->begin; w < column->end; ++w) {
          const auto* from = x + (h * plane.width + w) * plane.block;
          const FloatLanes next = *reinterpret_cast<const FloatLanes*>(from);
          // the later one of a NaN and a number, as in later_max()
          maximum = maximum > next ? maximum : next;
        }
      }
      *reinterpret_cast<FloatLanes*>(out) = maximum;
      out += plane.block;
    }
  }
}

// Searches a window backwards, as match_row() does, so that the first match is the last one stored.
NGRAPH_VECTORIZED void match_lanes(const float* x, const Plane& plane, const Windows& rows,
                                   const Windows& columns, const float* out, const float* grad,
                                   const Range& own, float* x_grad) {
  for (const auto* row = rows.first; row < rows.last; ++row) {
    for (const auto* column = columns.first; column < columns.last; ++column) {
      const FloatLanes maximum = *reinterpret_cast<const FloatLanes*>(out);
      IntLanes match = IntLanes{} + kNoMatch;
      for (int64_t h = row->end - 1; h >= row->begin; --h) {
        for (int64_t w = column->end - 1; w >= column->begin; --w) {
          const auto position = static_cast<int32_t>((h * plane.width + w) * plane.block);
          const FloatLanes from = *reinterpret_cast<const FloatLanes*>(x + position);
          match = from == maximum ? IntLanes{} + position : match;
        }
      }
      for (int64_t i = 0; i < kLanes; ++i) {
        if (match[i] >= own.begin && match[i] < own.end) x_grad[match[i] + i] += grad[i];
      }
      out += plane.block;
      grad += plane.block;
    }
  }
}

NGRAPH_VECTORIZED void average_lanes(const float* x, const Plane& plane, const Windows& rows,
                                     const Windows& columns, float* out) {
  for (const auto* row = rows.first; row < rows.last; ++row) {
    for (const auto* column = columns.first; column < columns.last; ++column) {
      FloatLanes sum{};
      for (int64_t h = row->begin; h < row->end; ++h) {
        for (int64_t w = column->begin; w < column->end; ++w) {
          const auto* from = x + (h * plane.width + w) * plane.block;
          sum += *reinterpret_cast<const FloatLanes*>(from);
        }
      }
      const auto divisor = static_cast<float>(row->divisor * column->divisor);
      *reinterpret_cast<FloatLanes*>(out) = sum / divisor;
      out += plane.block;
    }
  }
}

NGRAPH_VECTORIZED void spread_lanes(const float* grad, const Plane& plane, const Windows& rows,
                                    const Windows& columns, const Range& own, float* x_grad) {
  for (const auto* row = rows.first; row < rows.last; ++row) {
    const int64_t begin = std::max(row->begin, own.begin), end = std::min(row->end, own.end);
    for (const auto* column = columns.first; column < columns.last; ++column) {
      const float scale = 1.0F / static_cast<float>(row->divisor * column->divisor);
      const FloatLanes share = *reinterpret_cast<const FloatLanes*>(grad) * scale;
      for (int64_t h = begin; h < end; ++h) {
        for (int64_t w = column->begin; w < column->end; ++w) {
          auto* to = x_grad + (h * plane.width + w) * plane.block;
          *reinterpret_cast<FloatLanes*>(to) += share;
        }
      }
      grad += plane.block;
    }
  }
}

// Calls body(lane) for the first of every kLanes channels of a block.
template <typename Body>
void in_lanes(const Plane& plane, const Body& body) {
  for (int64_t lane = 0; lane < plane.block; lane += kLanes) body(lane);
}

std::vector<Stripe> stripes_of(const Plane& plane, int64_t kernel, int64_t stride, int64_t begin) {
  std::vector<Stripe> result;
  for (int64_t offset = 0; offset < kernel; ++offset) {
    Stripe stripe;
    stripe.first = begin + offset;
    stripe.begin = stripe.first >= 0 ? 0 : (-stripe.first + stride - 1) / stride;
    stripe.end = plane.width <= stripe.first
                     ? 0
                     : std::min(plane.out_width, (plane.width - 1 - stripe.first) / stride + 1);
    if (stripe.begin < stripe.end) result.push_back(stripe);
  }
  return result;
}

}  // namespace

Pooling::Pooling(const Plane& plane, std::vector<PoolWindow> rows, std::vector<PoolWindow> columns,
                 bool adaptive, int64_t kernel, int64_t stride, int64_t first)
    : plane(plane),
      rows(std::move(rows)),
      columns(std::move(columns)),
      along_rows(!adaptive && plane.out_width >= kLongRow),
      stride(stride) {
  if (along_rows) stripes = stripes_of(plane, kernel, stride, first);
}

Range Pooling::windows_over(const Range& range) const {
  // The begin and the end of the windows both increase from one window to the next.
  const auto first = std::partition_point(rows.begin(), rows.end(), [&](const PoolWindow& window) {
    return window.end <= range.begin;
  });
  const auto last = std::partition_point(
      first, rows.end(), [&](const PoolWindow& window) { return window.begin < range.end; });
  return {first - rows.begin(), last - rows.begin()};
}

void max_pool(const Pooling& pooling, const Range& rows, const float* x, float* out) {
  const Plane& plane = pooling.plane;
  out += rows.begin * plane.out_width * plane.block;
  if (plane.block > 1) {
    return in_lanes(plane, [&](int64_t lane) {
      max_lanes(x + lane, plane, Windows(pooling.rows, rows), Windows(pooling.columns), out + lane);
    });
  }
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const PoolWindow& row = pooling.rows[i];
    if (pooling.along_rows) {
      max_row(x, plane.width, row, pooling.stripes, pooling.stride, plane.out_width, out);
      out += plane.out_width;
      continue;
    }
    for (const auto& column : pooling.columns) *out++ = max_window(x, plane.width, row, column);
  }
}

void max_pool_grad(const Pooling& pooling, const Range& rows, const float* x, const float* out,
                   const float* grad, std::vector<int32_t>* match, float* x_grad) {
  const Plane& plane = pooling.plane;
  const int64_t row_size = plane.width * plane.block;
  const Range own{rows.begin * row_size, rows.end * row_size};
  const Range windows = pooling.windows_over(rows);
  out += windows.begin * plane.out_width * plane.block;
  grad += windows.begin * plane.out_width * plane.block;
  std::fill(x_grad + own.begin, x_grad + own.end, 0.0F);
  if (plane.block > 1) {
    return in_lanes(plane, [&](int64_t lane) {
      match_lanes(x + lane, plane, Windows(pooling.rows, windows), Windows(pooling.columns),
                  out + lane, grad + lane, own, x_grad + lane);
    });
  }
  for (int64_t i = windows.begin; i < windows.end; ++i) {
    const PoolWindow& row = pooling.rows[i];
    if (pooling.along_rows) {
      match_row(x, plane.width, row, pooling.stripes, pooling.stride, out, grad, own, match,
                x_grad);
      out += plane.out_width;
      grad += plane.out_width;
      continue;
    }
    for (const auto& column : pooling.columns) {
      match_window(x, plane.width, row, column, *out++, *grad++, own, x_grad);
    }
  }
}

void max_pool_with_index(const Pooling& pooling, const Range& rows, const float* x, float* out,
                         int32_t* mask) {
  const Plane& plane = pooling.plane;
  out += rows.begin * plane.out_width;
  mask += rows.begin * plane.out_width;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const PoolWindow& row = pooling.rows[i];
    if (pooling.along_rows) {
      find_row(x, plane.width, row, pooling.stripes, pooling.stride, plane.out_width, out, mask);
      out += plane.out_width;
      mask += plane.out_width;
      continue;
    }
    for (const auto& column : pooling.columns) {
      *mask++ = find_maximum(x, plane.width, row, column, out++);
    }
  }
}

void average_pool(const Pooling& pooling, const Range& rows, const float* x, float* out) {
  const Plane& plane = pooling.plane;
  out += rows.begin * plane.out_width * plane.block;
  if (plane.block > 1) {
    return in_lanes(plane, [&](int64_t lane) {
      average_lanes(x + lane, plane, Windows(pooling.rows, rows), Windows(pooling.columns),
                    out + lane);
    });
  }
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const PoolWindow& row = pooling.rows[i];
    for (const auto& column : pooling.columns) {
      const auto divisor = static_cast<float>(row.divisor * column.divisor);
      *out++ = sum_window(x, plane.width, row, column) / divisor;
    }
  }
}

void average_pool_grad(const Pooling& pooling, const Range& rows, const float* grad,
                       float* x_grad) {
  const Plane& plane = pooling.plane;
  const int64_t row_size = plane.width * plane.block;
  const Range windows = pooling.windows_over(rows);
  grad += windows.begin * plane.out_width * plane.block;
  std::fill(x_grad + rows.begin * row_size, x_grad + rows.end * row_size, 0.0F);
  if (plane.block > 1) {
    return in_lanes(plane, [&](int64_t lane) {
      spread_lanes(grad + lane, plane, Windows(pooling.rows, windows), Windows(pooling.columns),
                   rows, x_grad + lane);
    });
  }
  for (int64_t i = windows.begin; i < windows.end; ++i) {
    const PoolWindow& row = pooling.rows[i];
    for (const auto& column : pooling.columns) {
      const float scale = 1.0F / static_cast<float>(row.divisor * column.divisor);
      add_window(scale * *grad++, plane.width, row, column, rows, x_grad);
    }
  }
}

}  // namespace paddle_ngraph
