#include "core/ov/pool_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/common/vectorized.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// Output rows at least this long are computed one window offset at a time, along the row; shorter
// ones window by window.
constexpr int64_t kLongRow = 4;

// Where a maximum starts in native Paddle: a window of nothing but -inf gives this.
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Sizes of one plane: one channel of one sample, or one block of channels.
struct Plane {
  int64_t height = 0;
  int64_t width = 0;
  int64_t out_height = 0;
  int64_t out_width = 0;
  int64_t block = 1;  // channels side by side

  int64_t size() const { return height * width * block; }
  int64_t out_size() const { return out_height * out_width * block; }
};

Plane plane_of(const ov::Shape& input, const ov::Shape& output) {
  const auto block = static_cast<int64_t>(input.size() == 5 ? input[4] : 1);
  return {static_cast<int64_t>(input[2]), static_cast<int64_t>(input[3]),
          static_cast<int64_t>(output[2]), static_cast<int64_t>(output[3]), block};
}

int64_t planes_of(const ov::Shape& shape) { return static_cast<int64_t>(shape[0] * shape[1]); }

// The columns of one row that lie under one offset of the windows: output j reads x[first + j *
// stride].
struct Stripe {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;
};

std::vector<Stripe> stripes(const PoolAttributes& attributes, int64_t width, int64_t out_width) {
  const int64_t stride = attributes.strides[1];
  std::vector<Stripe> result;
  for (int64_t offset = 0; offset < attributes.kernel[1]; ++offset) {
    Stripe stripe;
    stripe.first = offset - attributes.pads[1];
    stripe.begin = stripe.first >= 0 ? 0 : (-stripe.first + stride - 1) / stride;
    stripe.end =
        width <= stripe.first ? 0 : std::min(out_width, (width - 1 - stripe.first) / stride + 1);
    if (stripe.begin < stripe.end) result.push_back(stripe);
  }
  return result;
}

// `a > b ? a : b`, not std::max: an earlier NaN gives way to a later number, as in native Paddle.
NGRAPH_INLINE inline float later_max(float so_far, float next) {
  return so_far > next ? so_far : next;
}

// kStride is the stride when it is known to the compiler, else 0.
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

// Notes `position` for the outputs that equal their element of the stripe.
template <int64_t kStride>
NGRAPH_INLINE inline void match_stripe(const float* x, const Stripe& stripe, int64_t stride,
                                       const float* out, int32_t position, int32_t* match) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (int64_t j = stripe.begin; j < stripe.end; ++j) {
    match[j] = x[j * step] == out[j] ? position : match[j];
  }
}

// Backwards and without a branch, so that the first match is noted last: which element of a window
// is the largest cannot be predicted. Then every output hands its gradient on once.
NGRAPH_VECTORIZED void match_row(const float* x, int64_t width, const PoolWindow& rows,
                                 const std::vector<Stripe>& columns, int64_t stride,
                                 const float* out, const float* grad, std::vector<int32_t>* match,
                                 float* x_grad) {
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
    const int32_t position = (*match)[j];
    if (position != kNoMatch) x_grad[position + static_cast<int64_t>(j) * stride] += grad[j];
  }
}

void match_window(const float* x, int64_t width, const PoolWindow& rows, const PoolWindow& columns,
                  float out, float grad, float* x_grad) {
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) {
      if (x[h * width + w] != out) continue;
      x_grad[h * width + w] += grad;
      return;
    }
  }
}

// The larger of what was found so far and the elements of the stripe, and its position.
template <int64_t kStride>
NGRAPH_INLINE inline void find_stripe(const float* x, const Stripe& stripe, int64_t stride,
                                      int32_t position, float* out, int32_t* mask) {
  const auto step = static_cast<int32_t>(kStride > 0 ? kStride : stride);
  const auto end = static_cast<int32_t>(stripe.end);
  for (auto j = static_cast<int32_t>(stripe.begin); j < end; ++j) {
    const float next = x[j * step];
    const bool larger = out[j] < next;  // NaN is not
    out[j] = larger ? next : out[j];
    mask[j] = larger ? position + j * step : mask[j];
  }
}

// find_maximum for a row of outputs.
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

// The first of the largest elements; -1 when none is above kLowest.
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
                float* x) {
  for (int64_t h = rows.begin; h < rows.end; ++h) {
    for (int64_t w = columns.begin; w < columns.end; ++w) x[h * width + w] += value;
  }
}

// The same poolings for channels in blocks, on kLanes channels side by side.

constexpr int64_t kLanes = 8;
using FloatLanes = float __attribute__((vector_size(32), aligned(4), may_alias));
using IntLanes = int32_t __attribute__((vector_size(32)));

// The windows along one axis.
struct Windows {
  explicit Windows(const std::vector<PoolWindow>& windows)
      : first(windows.data()), last(first + windows.size()) {}
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
          maximum = maximum > next ? maximum : next;  // as later_max
        }
      }
      *reinterpret_cast<FloatLanes*>(out) = maximum;
      out += plane.block;
    }
  }
}

// Backwards as match_row.
NGRAPH_VECTORIZED void match_lanes(const float* x, const Plane& plane, const Windows& rows,
                                   const Windows& columns, const float* out, const float* grad,
                                   float* x_grad) {
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
        if (match[i] != kNoMatch) x_grad[match[i] + i] += grad[i];
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
                                    const Windows& columns, float* x_grad) {
  for (const auto* row = rows.first; row < rows.last; ++row) {
    for (const auto* column = columns.first; column < columns.last; ++column) {
      const float scale = 1.0F / static_cast<float>(row->divisor * column->divisor);
      const FloatLanes share = *reinterpret_cast<const FloatLanes*>(grad) * scale;
      for (int64_t h = row->begin; h < row->end; ++h) {
        for (int64_t w = column->begin; w < column->end; ++w) {
          auto* to = x_grad + (h * plane.width + w) * plane.block;
          *reinterpret_cast<FloatLanes*>(to) += share;
        }
      }
      grad += plane.block;
    }
  }
}

// Calls body(lane) for every kLanes channels of a block.
template <typename Body>
void in_lanes(const Plane& plane, const Body& body) {
  for (int64_t lane = 0; lane < plane.block; lane += kLanes) body(lane);
}

// As native Paddle rounds them: in float32.
int64_t adaptive_begin(int64_t index, int64_t input, int64_t output) {
  return static_cast<int64_t>(std::floor(static_cast<float>(index * input) / output));
}

int64_t adaptive_end(int64_t index, int64_t input, int64_t output) {
  return static_cast<int64_t>(std::ceil(static_cast<float>((index + 1) * input) / output));
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// PoolOp

bool PoolOp::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("kernel", attributes_.kernel);
  visitor.on_attribute("strides", attributes_.strides);
  visitor.on_attribute("pads", attributes_.pads);
  visitor.on_attribute("output", attributes_.output);
  visitor.on_attribute("adaptive", attributes_.adaptive);
  visitor.on_attribute("exclusive", attributes_.exclusive);
  return true;
}

void PoolOp::check_attributes() const {
  for (const auto* values :
       {&attributes_.kernel, &attributes_.strides, &attributes_.pads, &attributes_.output}) {
    require(values->size() == 2, "an attribute holds ", values->size(), " numbers, not 2");
  }
  for (size_t axis = 0; axis < 2; ++axis) {
    require(attributes_.kernel[axis] > 0 && attributes_.strides[axis] > 0 &&
                attributes_.pads[axis] >= 0 && attributes_.output[axis] >= 0,
            "an attribute of axis ", axis, " is out of range");
  }
}

void PoolOp::require_planes(size_t index) const {
  const auto& shape = get_input_shape(index);
  require_float(index, shape.size() == 5 ? 5 : 4);
  require(shape.size() == 4 || shape[4] == 8 || shape[4] == 16, "blocks of ", shape.back(),
          " channels");
}

ov::Shape PoolOp::pooled_shape(const ov::Shape& input) const {
  ov::Shape result = input;
  for (size_t axis = 0; axis < 2; ++axis) {
    result[2 + axis] = static_cast<size_t>(attributes_.output[axis]);
  }
  return result;
}

std::vector<PoolWindow> PoolOp::windows(int64_t input, size_t axis) const {
  const int64_t output = attributes_.output[axis];
  const int64_t pad = attributes_.pads[axis];
  std::vector<PoolWindow> result(output);
  for (int64_t i = 0; i < output; ++i) {
    auto& window = result[i];
    if (attributes_.adaptive) {
      window.begin = adaptive_begin(i, input, output);
      window.end = adaptive_end(i, input, output);
      window.divisor = window.end - window.begin;
      continue;
    }
    const int64_t begin = i * attributes_.strides[axis] - pad;
    const int64_t end = begin + attributes_.kernel[axis];
    window.begin = std::max<int64_t>(begin, 0);
    window.end = std::min(end, input);
    window.divisor =
        attributes_.exclusive ? window.end - window.begin : std::min(end, input + pad) - begin;
  }
  return result;
}

// ---------------------------------------------------------------------------------------------
// MaxPool

std::shared_ptr<ov::Node> MaxPool::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<MaxPool>(inputs, attributes());
}

void MaxPool::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
}

void MaxPool::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Plane plane = plane_of(inputs[0].get_shape(), outputs->front().get_shape());
  const auto rows = windows(plane.height, 0);
  const auto columns = windows(plane.width, 1);
  const auto offsets = stripes(attributes(), plane.width, plane.out_width);
  const bool along_rows = !attributes().adaptive && plane.out_width >= kLongRow;
  const float* data = inputs[0].data<const float>();
  float* result = outputs->front().data<float>();
  const auto pool_plane = [&](const float* x, float* out) {
    if (plane.block > 1) {
      return in_lanes(plane, [&](int64_t lane) {
        max_lanes(x + lane, plane, Windows(rows), Windows(columns), out + lane);
      });
    }
    for (int64_t i = 0; i < plane.out_height; ++i, out += plane.out_width) {
      if (along_rows) {
        max_row(x, plane.width, rows[i], offsets, attributes().strides[1], plane.out_width, out);
        continue;
      }
      for (int64_t j = 0; j < plane.out_width; ++j) {
        out[j] = max_window(x, plane.width, rows[i], columns[j]);
      }
    }
  };
  const int64_t steps = plane.out_size() * attributes().kernel[0] * attributes().kernel[1];
  parallel_ranges(planes_of(inputs[0].get_shape()), steps, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      pool_plane(data + p * plane.size(), result + p * plane.out_size());
    }
  });
}

// ---------------------------------------------------------------------------------------------
// MaxPoolGrad

std::shared_ptr<ov::Node> MaxPoolGrad::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<MaxPoolGrad>(inputs, attributes());
}

void MaxPoolGrad::infer() {
  require(get_input_size() == 3, "takes 3 inputs, got ", get_input_size());
  for (size_t i = 0; i < 3; ++i) require_planes(i);
  check_attributes();
  const auto pooled = pooled_shape(get_input_shape(0));
  require(get_input_shape(1) == pooled && get_input_shape(2) == pooled,
          "out and out_grad must have shape ", pooled);
  set_output_type(0, ov::element::f32, get_input_shape(0));
}

void MaxPoolGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Plane plane = plane_of(inputs[0].get_shape(), inputs[1].get_shape());
  const auto rows = windows(plane.height, 0);
  const auto columns = windows(plane.width, 1);
  const auto offsets = stripes(attributes(), plane.width, plane.out_width);
  const bool along_rows = !attributes().adaptive && plane.out_width >= kLongRow;
  const auto pool_plane = [&](int64_t p, std::vector<int32_t>* match) {
    const float* x = inputs[0].data<const float>() + p * plane.size();
    const float* out = inputs[1].data<const float>() + p * plane.out_size();
    const float* grad = inputs[2].data<const float>() + p * plane.out_size();
    float* x_grad = outputs->front().data<float>() + p * plane.size();
    std::fill(x_grad, x_grad + plane.size(), 0.0F);
    if (plane.block > 1) {
      return in_lanes(plane, [&](int64_t lane) {
        match_lanes(x + lane, plane, Windows(rows), Windows(columns), out + lane, grad + lane,
                    x_grad + lane);
      });
    }
    for (int64_t i = 0; i < plane.out_height; ++i) {
      if (along_rows) {
        match_row(x, plane.width, rows[i], offsets, attributes().strides[1],
                  out + i * plane.out_width, grad + i * plane.out_width, match, x_grad);
        continue;
      }
      for (int64_t j = 0; j < plane.out_width; ++j) {
        const int64_t at = i * plane.out_width + j;
        match_window(x, plane.width, rows[i], columns[j], out[at], grad[at], x_grad);
      }
    }
  };
  const int64_t steps = plane.out_size() * attributes().kernel[0] * attributes().kernel[1];
  parallel_ranges(planes_of(inputs[0].get_shape()), steps, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> match(plane.out_width);
    for (int64_t p = begin; p < end; ++p) pool_plane(p, &match);
  });
}

// ---------------------------------------------------------------------------------------------
// MaxPoolWithIndex

std::shared_ptr<ov::Node> MaxPoolWithIndex::clone_with_new_inputs(
    const ov::OutputVector& inputs) const {
  return std::make_shared<MaxPoolWithIndex>(inputs, attributes());
}

void MaxPoolWithIndex::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_float(0, 4);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
  set_output_type(1, ov::element::i32, pooled_shape(get_input_shape(0)));
}

void MaxPoolWithIndex::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Plane plane = plane_of(inputs[0].get_shape(), outputs->front().get_shape());
  const auto rows = windows(plane.height, 0);
  const auto columns = windows(plane.width, 1);
  const auto offsets = stripes(attributes(), plane.width, plane.out_width);
  const bool along_rows = !attributes().adaptive && plane.out_width >= kLongRow;
  const auto pool_plane = [&](int64_t p) {
    const float* x = inputs[0].data<const float>() + p * plane.size();
    float* out = (*outputs)[0].data<float>() + p * plane.out_size();
    int32_t* mask = (*outputs)[1].data<int32_t>() + p * plane.out_size();
    for (const auto& row : rows) {
      if (along_rows) {
        find_row(x, plane.width, row, offsets, attributes().strides[1], plane.out_width, out, mask);
        out += plane.out_width;
        mask += plane.out_width;
        continue;
      }
      for (const auto& column : columns) {
        *mask++ = find_maximum(x, plane.width, row, column, out++);
      }
    }
  };
  parallel_ranges(planes_of(inputs[0].get_shape()), plane.size() + plane.out_size(),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t p = begin; p < end; ++p) pool_plane(p);
                  });
}

// ---------------------------------------------------------------------------------------------
// MaxPoolWithIndexGrad

std::shared_ptr<ov::Node> MaxPoolWithIndexGrad::clone_with_new_inputs(
    const ov::OutputVector& inputs) const {
  return std::make_shared<MaxPoolWithIndexGrad>(inputs, input_);
}

bool MaxPoolWithIndexGrad::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("input", input_);
  return true;
}

void MaxPoolWithIndexGrad::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  require(get_input_element_type(0) == ov::element::i32, "the mask must be i32");
  require_float(1, 4);
  require(get_input_shape(0) == get_input_shape(1), "mask and out_grad differ in shape");
  require(input_.size() == 2 && input_[0] >= 0 && input_[1] >= 0,
          "attribute input is out of range");
  const auto& grad = get_input_shape(1);
  set_output_type(
      0, ov::element::f32,
      ov::Shape{grad[0], grad[1], static_cast<size_t>(input_[0]), static_cast<size_t>(input_[1])});
}

void MaxPoolWithIndexGrad::compute(const ov::TensorVector& inputs,
                                   ov::TensorVector* outputs) const {
  const Plane plane = plane_of(outputs->front().get_shape(), inputs[1].get_shape());
  const auto spread_plane = [&](int64_t p) {
    const int32_t* mask = inputs[0].data<const int32_t>() + p * plane.out_size();
    const float* grad = inputs[1].data<const float>() + p * plane.out_size();
    float* x_grad = outputs->front().data<float>() + p * plane.size();
    std::fill(x_grad, x_grad + plane.size(), 0.0F);
    for (int64_t i = 0; i < plane.out_size(); ++i) {
      if (mask[i] == -1) continue;
      require(mask[i] >= 0 && mask[i] < plane.size(), "position ", mask[i], " is not in [0, ",
              plane.size(), ")");
      x_grad[mask[i]] += grad[i];
    }
  };
  parallel_ranges(planes_of(inputs[1].get_shape()), plane.size() + plane.out_size(),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t p = begin; p < end; ++p) spread_plane(p);
                  });
}

// ---------------------------------------------------------------------------------------------
// AvgPool

std::shared_ptr<ov::Node> AvgPool::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<AvgPool>(inputs, attributes());
}

void AvgPool::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
}

void AvgPool::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Plane plane = plane_of(inputs[0].get_shape(), outputs->front().get_shape());
  const auto rows = windows(plane.height, 0);
  const auto columns = windows(plane.width, 1);
  const auto pool_plane = [&](int64_t p) {
    const float* x = inputs[0].data<const float>() + p * plane.size();
    float* out = outputs->front().data<float>() + p * plane.out_size();
    if (plane.block > 1) {
      return in_lanes(plane, [&](int64_t lane) {
        average_lanes(x + lane, plane, Windows(rows), Windows(columns), out + lane);
      });
    }
    for (const auto& row : rows) {
      for (const auto& column : columns) {
        const auto divisor = static_cast<float>(row.divisor * column.divisor);
        *out++ = sum_window(x, plane.width, row, column) / divisor;
      }
    }
  };
  parallel_ranges(planes_of(inputs[0].get_shape()), plane.size() + plane.out_size(),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t p = begin; p < end; ++p) pool_plane(p);
                  });
}

// ---------------------------------------------------------------------------------------------
// AvgPoolGrad

std::shared_ptr<ov::Node> AvgPoolGrad::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<AvgPoolGrad>(inputs, attributes(), input_);
}

bool AvgPoolGrad::visit_attributes(ov::AttributeVisitor& visitor) {
  PoolOp::visit_attributes(visitor);
  visitor.on_attribute("input", input_);
  return true;
}

void AvgPoolGrad::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  require(input_.size() == 2 && input_[0] >= 0 && input_[1] >= 0,
          "attribute input is out of range");
  const auto& grad = get_input_shape(0);
  require(grad == pooled_shape(grad), "out_grad must have shape ", pooled_shape(grad));
  ov::Shape input = grad;
  for (size_t axis = 0; axis < 2; ++axis) input[2 + axis] = static_cast<size_t>(input_[axis]);
  set_output_type(0, ov::element::f32, input);
}

void AvgPoolGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Plane plane = plane_of(outputs->front().get_shape(), inputs[0].get_shape());
  const auto rows = windows(plane.height, 0);
  const auto columns = windows(plane.width, 1);
  const auto spread_plane = [&](int64_t p) {
    const float* grad = inputs[0].data<const float>() + p * plane.out_size();
    float* x_grad = outputs->front().data<float>() + p * plane.size();
    std::fill(x_grad, x_grad + plane.size(), 0.0F);
    if (plane.block > 1) {
      return in_lanes(plane, [&](int64_t lane) {
        spread_lanes(grad + lane, plane, Windows(rows), Windows(columns), x_grad + lane);
      });
    }
    for (const auto& row : rows) {
      for (const auto& column : columns) {
        const float scale = 1.0F / static_cast<float>(row.divisor * column.divisor);
        add_window(scale * *grad++, plane.width, row, column, x_grad);
      }
    }
  };
  parallel_ranges(planes_of(inputs[0].get_shape()), plane.size() + plane.out_size(),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t p = begin; p < end; ++p) spread_plane(p);
                  });
}

}  // namespace paddle_ngraph
