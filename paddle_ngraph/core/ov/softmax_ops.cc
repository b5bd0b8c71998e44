#include "core/ov/softmax_ops.h"

#include <limits>

#include "core/common/exponential.h"
#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// The lower bound to which exponents are clamped, as in Paddle.
constexpr float kLowest = -64.0F;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The number of elements that Paddle's kernel processes at once. In these it clamps NaN, too:
// therefore all exponentials of a row of -inf are equal if no element remains; else the row becomes
// NaN.
constexpr int64_t kPaddleVectorLength = 8;

// The value that softmax subtracts from each element of a row with this maximum.
NGRAPH_INLINE inline float shift_of(float largest, int64_t length) {
  const bool is_clamped = length % kPaddleVectorLength == 0;
  return is_clamped && largest == kNothing ? std::numeric_limits<float>::lowest() : largest;
}

// Exponentials are summed as they are computed: the start of a long row has left the L1 cache when
// its last exponential is computed.
NGRAPH_VECTORIZED void softmax_row(const float* __restrict__ x, int64_t length,
                                   float* __restrict__ y) {
  const float largest = shift_of(largest_of(x, length, kNothing), length);
  const float total = sum_of(length, [=](int64_t i) NGRAPH_INLINE {
    const float shifted = x[i] - largest;  // at most 0
    const auto [power, rest] = exponential_within(shifted < kLowest ? kLowest : shifted);
    const float exponential = power + power * rest;
    y[i] = exponential;
    return exponential;
  });
  const float inverse = 1.0F / total;
  for (int64_t i = 0; i < length; ++i) y[i] *= inverse;
}

NGRAPH_VECTORIZED void gradient_row(const float* __restrict__ y, const float* __restrict__ grad,
                                    int64_t length, float* __restrict__ x_grad) {
  const float total = sum_of(length, [=](int64_t i) NGRAPH_INLINE { return y[i] * grad[i]; });
  for (int64_t i = 0; i < length; ++i) x_grad[i] = (grad[i] - total) * y[i];
}

// Calls body(offset of the row) for the rows of [..., L].
template <typename Body>
void each_row(const ov::Shape& shape, const Body& body) {
  const auto elements = static_cast<int64_t>(ov::shape_size(shape));
  if (elements == 0) return;
  const auto length = static_cast<int64_t>(shape.back()), rows = elements / length;
  parallel_ranges(rows, length, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row * length);
  });
}

}  // namespace

void RowSoftmax::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_rows(0);
  set_output_type(0, ov::element::f32, get_input_partial_shape(0));
}

void RowSoftmax::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs[0].get_shape();
  const float* x = inputs[0].data<const float>();
  float* y = outputs->front().data<float>();
  const auto length = static_cast<int64_t>(shape.back());
  each_row(shape, [&](int64_t at) { softmax_row(x + at, length, y + at); });
}

void RowSoftmaxGrad::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  for (size_t i = 0; i < 2; ++i) require_rows(i);
  require(get_input_shape(0) == get_input_shape(1), "y and y_grad differ in shape");
  set_output_type(0, ov::element::f32, get_input_shape(0));
}

void RowSoftmaxGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs[0].get_shape();
  const float* y = inputs[0].data<const float>();
  const float* grad = inputs[1].data<const float>();
  float* x_grad = outputs->front().data<float>();
  const auto length = static_cast<int64_t>(shape.back());
  each_row(shape, [&](int64_t at) { gradient_row(y + at, grad + at, length, x_grad + at); });
}

}  // namespace paddle_ngraph
