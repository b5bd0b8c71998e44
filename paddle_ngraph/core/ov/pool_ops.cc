#include "core/ov/pool_ops.h"

#include <algorithm>
#include <cmath>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

Plane plane_of(const ov::Shape& input, const ov::Shape& output) {
  const auto block = static_cast<int64_t>(input.size() == 5 ? input[4] : 1);
  return {static_cast<int64_t>(input[2]), static_cast<int64_t>(input[3]),
          static_cast<int64_t>(output[2]), static_cast<int64_t>(output[3]), block};
}

enum PoolAxis { kPlanes, kRows };

// Calls body(plane, rows) on chunks of a tensor's planes, of which each has `rows` rows and `steps`
// of work: whole planes or, where these are few, ranges of their rows. `body` is called for several
// planes in sequence, with the result of `start`.
template <typename Start, typename Body>
void each_part(const ov::Shape& shape, int64_t rows, int64_t steps, const Start& start,
               const Body& body) {
  const auto planes = static_cast<int64_t>(shape[0] * shape[1]);
  if (planes == 0) return;
  Work work;
  work.multiplies = static_cast<double>(planes * steps) * kMultipliesPerStep;
  work.axes.resize(2);
  work.axes[kPlanes].units = planes;
  work.axes[kRows].units = std::max<int64_t>(rows, 1);
  work.axes[kRows].needs = kPlanes;
  const Grid grid = divide(work, planes * steps < 2 * kStepsPerTask ? 1 : shared_threads());
  parallel_tasks(grid, work.multiplies, [&](int64_t task) {
    auto memory = start();
    const Range own = grid.range(kPlanes, task), part = grid.range(kRows, task);
    for (int64_t plane = own.begin; plane < own.end; ++plane) {
      body(plane, Range{part.begin, std::min(part.end, rows)}, &memory);
    }
  });
}

template <typename Body>
void each_part(const ov::Shape& shape, int64_t rows, int64_t steps, const Body& body) {
  each_part(
      shape, rows, steps, [] { return 0; },
      [&](int64_t plane, const Range& part, int*) { body(plane, part); });
}

// The index of the first input element of an adaptive window. The quotient is float32, as in plain
// Paddle.
int64_t adaptive_begin(int64_t index, int64_t input, int64_t output) {
  return static_cast<int64_t>(std::floor(static_cast<float>(index * input) / output));
}

int64_t adaptive_end(int64_t index, int64_t input, int64_t output) {
  return static_cast<int64_t>(std::ceil(static_cast<float>((index + 1) * input) / output));
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// PoolOp

void PoolOp::check_attributes() const {
  for (const auto* values :
       {&attributes().kernel, &attributes().strides, &attributes().pads, &attributes().output}) {
    require(values->size() == 2, "an attribute holds ", values->size(), " numbers, not 2");
  }
  for (size_t axis = 0; axis < 2; ++axis) {
    require(attributes().kernel[axis] > 0 && attributes().strides[axis] > 0 &&
                attributes().pads[axis] >= 0 && attributes().output[axis] >= 0,
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
    result[2 + axis] = static_cast<size_t>(attributes().output[axis]);
  }
  return result;
}

std::vector<PoolWindow> PoolOp::windows(int64_t input, size_t axis) const {
  const int64_t output = attributes().output[axis];
  const int64_t pad = attributes().pads[axis];
  std::vector<PoolWindow> result(output);
  for (int64_t i = 0; i < output; ++i) {
    auto& window = result[i];
    if (attributes().adaptive) {
      window.begin = adaptive_begin(i, input, output);
      window.end = adaptive_end(i, input, output);
      window.divisor = window.end - window.begin;
      continue;
    }
    const int64_t begin = i * attributes().strides[axis] - pad;
    const int64_t end = begin + attributes().kernel[axis];
    window.begin = std::max<int64_t>(begin, 0);
    window.end = std::min(end, input);
    window.divisor =
        attributes().exclusive ? window.end - window.begin : std::min(end, input + pad) - begin;
  }
  return result;
}

Pooling PoolOp::pooling_of(const ov::Shape& input, const ov::Shape& output) const {
  const Plane plane = plane_of(input, output);
  const auto& a = attributes();
  return {plane,
          windows(plane.height, 0),
          windows(plane.width, 1),
          a.adaptive,
          a.kernel[1],
          a.strides[1],
          -a.pads[1]};
}

// ---------------------------------------------------------------------------------------------
// PaddleMaxPool

void PaddleMaxPool::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
}

void PaddleMaxPool::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Pooling pooling = pooling_of(inputs[0].get_shape(), outputs->front().get_shape());
  const Plane& plane = pooling.plane;
  const float* x = inputs[0].data<const float>();
  float* out = outputs->front().data<float>();
  const int64_t steps = plane.out_size() * attributes().kernel[0] * attributes().kernel[1];
  each_part(inputs[0].get_shape(), plane.out_height, steps, [&](int64_t p, const Range& rows) {
    max_pool(pooling, rows, x + p * plane.size(), out + p * plane.out_size());
  });
}

// ---------------------------------------------------------------------------------------------
// PaddleMaxPoolGrad

void PaddleMaxPoolGrad::infer() {
  require(get_input_size() == 3, "takes 3 inputs, got ", get_input_size());
  for (size_t i = 0; i < 3; ++i) require_planes(i);
  check_attributes();
  const auto pooled = pooled_shape(get_input_shape(0));
  require(get_input_shape(1) == pooled && get_input_shape(2) == pooled,
          "out and out_grad must have shape ", pooled);
  set_output_type(0, ov::element::f32, get_input_shape(0));
}

void PaddleMaxPoolGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Pooling pooling = pooling_of(inputs[0].get_shape(), inputs[1].get_shape());
  const Plane& plane = pooling.plane;
  const float* x = inputs[0].data<const float>();
  const float* out = inputs[1].data<const float>();
  const float* grad = inputs[2].data<const float>();
  float* x_grad = outputs->front().data<float>();
  const int64_t steps = plane.out_size() * attributes().kernel[0] * attributes().kernel[1];
  const auto match = [&] { return std::vector<int32_t>(plane.out_width); };
  each_part(inputs[0].get_shape(), plane.height, steps, match,
            [&](int64_t p, const Range& rows, std::vector<int32_t>* memory) {
              const int64_t at = p * plane.out_size();
              max_pool_grad(pooling, rows, x + p * plane.size(), out + at, grad + at, memory,
                            x_grad + p * plane.size());
            });
}

// ---------------------------------------------------------------------------------------------
// MaxPoolWithIndex

void MaxPoolWithIndex::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_float(0, 4);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
  set_output_type(1, ov::element::i32, pooled_shape(get_input_shape(0)));
}

void MaxPoolWithIndex::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Pooling pooling = pooling_of(inputs[0].get_shape(), outputs->front().get_shape());
  const Plane& plane = pooling.plane;
  const float* x = inputs[0].data<const float>();
  float* out = (*outputs)[0].data<float>();
  int32_t* mask = (*outputs)[1].data<int32_t>();
  const int64_t steps = plane.size() + plane.out_size();
  each_part(inputs[0].get_shape(), plane.out_height, steps, [&](int64_t p, const Range& rows) {
    const int64_t at = p * plane.out_size();
    max_pool_with_index(pooling, rows, x + p * plane.size(), out + at, mask + at);
  });
}

// ---------------------------------------------------------------------------------------------
// MaxPoolWithIndexGrad

void MaxPoolWithIndexGrad::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  require(get_input_element_type(0) == ov::element::i32, "the mask must be i32");
  require_float(1, 4);
  require(get_input_shape(0) == get_input_shape(1), "mask and out_grad differ in shape");
  require(
      attributes().input.size() == 2 && attributes().input[0] >= 0 && attributes().input[1] >= 0,
      "attribute input is out of range");
  const auto& grad = get_input_shape(1);
  set_output_type(0, ov::element::f32,
                  ov::Shape{grad[0], grad[1], static_cast<size_t>(attributes().input[0]),
                            static_cast<size_t>(attributes().input[1])});
}

void MaxPoolWithIndexGrad::compute(const ov::TensorVector& inputs,
                                   ov::TensorVector* outputs) const {
  const Plane plane = plane_of(outputs->front().get_shape(), inputs[1].get_shape());
  const auto spread_plane = [&](int64_t p, const Range&) {
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
  // Threads get whole planes, not rows of planes: rows of the mask (indices of maxima) may address
  // any element of the input's plane, so that two threads could add to one element.
  each_part(inputs[1].get_shape(), 1, plane.size() + plane.out_size(), spread_plane);
}

// ---------------------------------------------------------------------------------------------
// PaddleAvgPool

void PaddleAvgPool::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  set_output_type(0, ov::element::f32, pooled_shape(get_input_shape(0)));
}

void PaddleAvgPool::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Pooling pooling = pooling_of(inputs[0].get_shape(), outputs->front().get_shape());
  const Plane& plane = pooling.plane;
  const float* x = inputs[0].data<const float>();
  float* out = outputs->front().data<float>();
  const int64_t steps = plane.size() + plane.out_size();
  each_part(inputs[0].get_shape(), plane.out_height, steps, [&](int64_t p, const Range& rows) {
    average_pool(pooling, rows, x + p * plane.size(), out + p * plane.out_size());
  });
}

// ---------------------------------------------------------------------------------------------
// PaddleAvgPoolGrad

void PaddleAvgPoolGrad::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require_planes(0);
  check_attributes();
  require(
      attributes().input.size() == 2 && attributes().input[0] >= 0 && attributes().input[1] >= 0,
      "attribute input is out of range");
  const auto& grad = get_input_shape(0);
  require(grad == pooled_shape(grad), "out_grad must have shape ", pooled_shape(grad));
  ov::Shape input = grad;
  for (size_t axis = 0; axis < 2; ++axis) {
    input[2 + axis] = static_cast<size_t>(attributes().input[axis]);
  }
  set_output_type(0, ov::element::f32, input);
}

void PaddleAvgPoolGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const Pooling pooling = pooling_of(outputs->front().get_shape(), inputs[0].get_shape());
  const Plane& plane = pooling.plane;
  const float* grad = inputs[0].data<const float>();
  float* x_grad = outputs->front().data<float>();
  const int64_t steps = plane.size() + plane.out_size();
  each_part(inputs[0].get_shape(), plane.height, steps, [&](int64_t p, const Range& rows) {
    average_pool_grad(pooling, rows, grad + p * plane.out_size(), x_grad + p * plane.size());
  });
}

}  // namespace paddle_ngraph
