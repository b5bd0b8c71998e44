// A Paddle custom operator: y = max(x, 0)^3, with its gradient. Nothing here knows of nGraph.

#include <algorithm>
#include <vector>

#include "paddle/extension.h"

std::vector<paddle::Tensor> forward(const paddle::Tensor& x) {
  auto y = paddle::empty_like(x);
  const auto* from = x.data<float>();
  auto* to = y.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float positive = std::max(from[i], 0.0f);
    to[i] = positive * positive * positive;
  }
  return {y};
}

std::vector<paddle::Tensor> backward(const paddle::Tensor& x, const paddle::Tensor& y_grad) {
  auto x_grad = paddle::empty_like(x);
  const auto* from = x.data<float>();
  const auto* grad = y_grad.data<float>();
  auto* to = x_grad.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float positive = std::max(from[i], 0.0f);
    to[i] = 3.0f * positive * positive * grad[i];
  }
  return {x_grad};
}

PD_BUILD_OP(cubed_relu).Inputs({"X"}).Outputs({"Y"}).SetKernelFn(PD_KERNEL(forward));

PD_BUILD_GRAD_OP(cubed_relu)
    .Inputs({"X", paddle::Grad("Y")})
    .Outputs({paddle::Grad("X")})
    .SetKernelFn(PD_KERNEL(backward));
