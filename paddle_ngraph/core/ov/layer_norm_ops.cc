#include "core/ov/layer_norm_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// The gradients of at most this number of rows are summed in float32; these sums are added in
// float64.
constexpr int64_t kRows = 64;

NGRAPH_VECTORIZED void normalize_row(const float* x, int64_t length, const float* scale,
                                     const float* bias, float epsilon, float* y, float* mean,
                                     float* variance) {
  const auto count = static_cast<float>(length);
  const float middle = sum_of(length, [=](int64_t i) NGRAPH_INLINE { return x[i]; }) / count;
  const float spread =
      sum_of(length, [=](int64_t i) NGRAPH_INLINE { return (x[i] - middle) * (x[i] - middle); }) /
      count;
  const float inverse = 1.0F / std::sqrt(spread + epsilon);
  for (int64_t i = 0; i < length; ++i) y[i] = (x[i] - middle) * inverse * scale[i] + bias[i];
  *mean = middle;
  *variance = spread;
}

// Computes the gradient of x for one row, and adds the row's terms to the gradients of scale and
// bias.
NGRAPH_VECTORIZED void gradient_row(const float* __restrict__ x, const float* __restrict__ grad,
                                    int64_t length, const float* __restrict__ scale, float mean,
                                    float inverse, float* __restrict__ x_grad,
                                    float* __restrict__ scale_grad, float* __restrict__ bias_grad) {
  const auto count = static_cast<float>(length);
  const float shift =
      sum_of(length, [=](int64_t i) NGRAPH_INLINE { return grad[i] * scale[i]; }) / count;
  const float slope =
      sum_of(length, [=](int64_t i)
                         NGRAPH_INLINE { return grad[i] * scale[i] * ((x[i] - mean) * inverse); }) /
      count;
  for (int64_t i = 0; i < length; ++i) {
    const float normal = (x[i] - mean) * inverse;
    scale_grad[i] += grad[i] * normal;
    bias_grad[i] += grad[i];
    x_grad[i] = (grad[i] * scale[i] - shift - normal * slope) * inverse;
  }
}

// Adds the float array `terms` to the double array `sums`, and sets `terms` to 0.
void flush(std::vector<float>* terms, double* sums) {
  for (size_t i = 0; i < terms->size(); ++i) sums[i] += (*terms)[i];
  std::fill(terms->begin(), terms->end(), 0.0F);
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// LayerNorm

void LayerNorm::infer() {
  require(get_input_size() == 3, "takes 3 inputs, got ", get_input_size());
  require_float(0, 2);
  const auto& shape = get_input_shape(0);
  for (size_t i = 1; i < 3; ++i) {
    require_float(i, 1);
    require(get_input_shape(i)[0] == shape[1], "input ", i, " must have shape [", shape[1], "]");
  }
  set_output_type(0, ov::element::f32, shape);
  for (size_t i = 1; i < 3; ++i) set_output_type(i, ov::element::f32, ov::Shape{shape[0]});
}

void LayerNorm::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto rows = static_cast<int64_t>(inputs[0].get_shape()[0]);
  const auto length = static_cast<int64_t>(inputs[0].get_shape()[1]);
  const float* x = inputs[0].data<const float>();
  const float* scale = inputs[1].data<const float>();
  const float* bias = inputs[2].data<const float>();
  float* y = (*outputs)[0].data<float>();
  float* mean = (*outputs)[1].data<float>();
  float* variance = (*outputs)[2].data<float>();
  parallel_ranges(rows, length, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      normalize_row(x + row * length, length, scale, bias, static_cast<float>(attributes().epsilon),
                    y + row * length, mean + row, variance + row);
    }
  });
}

// ---------------------------------------------------------------------------------------------
// LayerNormGrad

void LayerNormGrad::infer() {
  require(get_input_size() == 5, "takes 5 inputs, got ", get_input_size());
  for (size_t i = 0; i < 2; ++i) require_float(i, 2);
  for (size_t i = 2; i < 5; ++i) require_float(i, 1);
  const auto& shape = get_input_shape(0);
  require(get_input_shape(1) == shape, "x and y_grad differ in shape");
  require(get_input_shape(2)[0] == shape[1], "scale must have shape [", shape[1], "]");
  for (size_t i = 3; i < 5; ++i) {
    require(get_input_shape(i)[0] == shape[0], "input ", i, " must have shape [", shape[0], "]");
  }
  set_output_type(0, ov::element::f32, shape);
  for (size_t i = 1; i < 3; ++i) set_output_type(i, ov::element::f32, ov::Shape{shape[1]});
}

void LayerNormGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto rows = static_cast<int64_t>(inputs[0].get_shape()[0]);
  const auto length = static_cast<int64_t>(inputs[0].get_shape()[1]);
  const float* x = inputs[0].data<const float>();
  const float* grad = inputs[1].data<const float>();
  const float* scale = inputs[2].data<const float>();
  const float* mean = inputs[3].data<const float>();
  const float* variance = inputs[4].data<const float>();
  float* x_grad = (*outputs)[0].data<float>();
  // Each task, a range of rows, has its own partial sums of the gradients; these are added in
  // order.
  const int64_t threads = rows * length < 2 * kStepsPerTask ? 1 : shared_threads();
  const int64_t units = std::max<int64_t>(1, rows);
  const Grid grid({units}, {std::min(units, threads)});
  std::vector<double> scale_sums(grid.tasks() * length), bias_sums(grid.tasks() * length);
  parallel_tasks(grid, static_cast<double>(rows * length) * kMultipliesPerStep, [&](int64_t task) {
    const Range share = rows > 0 ? grid.range(0, task) : Range{};
    std::vector<float> scale_part(length), bias_part(length);
    double* scale_total = scale_sums.data() + task * length;
    double* bias_total = bias_sums.data() + task * length;
    for (int64_t row = share.begin; row < share.end; ++row) {
      const float inverse =
          1.0F / std::sqrt(variance[row] + static_cast<float>(attributes().epsilon));
      gradient_row(x + row * length, grad + row * length, length, scale, mean[row], inverse,
                   x_grad + row * length, scale_part.data(), bias_part.data());
      if ((row - share.begin) % kRows != kRows - 1 && row != share.end - 1) continue;
      flush(&scale_part, scale_total);
      flush(&bias_part, bias_total);
    }
  });
  for (const auto& [sums, result] :
       {std::pair{&scale_sums, &(*outputs)[1]}, std::pair{&bias_sums, &(*outputs)[2]}}) {
    for (int64_t i = 0; i < length; ++i) {
      double total = 0;
      for (int64_t task = 0; task < grid.tasks(); ++task) total += (*sums)[task * length + i];
      result->data<float>()[i] = static_cast<float>(total);
    }
  }
}

}  // namespace paddle_ngraph
