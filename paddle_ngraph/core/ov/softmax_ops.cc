#include "core/ov/softmax_ops.h"

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"
#include "core/ov/kernels/softmax.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

NGRAPH_VECTORIZED void gradient_row(const float* __restrict__ y, const float* __restrict__ grad,
                                    int64_t length, float* __restrict__ x_grad) {
  const float total = sum_of(length, [=](int64_t i) NGRAPH_INLINE { return y[i] * grad[i]; });
  for (int64_t i = 0; i < length; ++i) x_grad[i] = (grad[i] - total) * y[i];
}

// Calls body(offset) for the offset of each row of a tensor [..., L].
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
