// Batch normalization in training and its gradient: statistics and output are computed per group of
// a few channels, while their data is in the cache.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// Attributes of the ReLU that is fused behind a batch normalization: max(y, 0), or min(max(y, 0),
// ceiling) if the ceiling is not 0.
struct Relu {
  bool is_on = false;
  double ceiling = 0;
};

struct BatchNormAttributes {
  double epsilon = 1e-5;
  double momentum = 0.9;
  Relu relu;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("epsilon", epsilon);
    visit("momentum", momentum);
    visit("rectified", relu.is_on);
    visit("ceiling", relu.ceiling);
  }
};

struct BatchNormGradAttributes {
  Relu relu;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("rectified", relu.is_on);
    visit("ceiling", relu.ceiling);
  }
};

// Data is [N, C / block, S, block] or [N, C / block, H, W, block]: block is 1 for channels first, C
// for channels last, and between 1 and C in the blocked layout of the convolutions. Per-channel
// tensors are [C].

// (x, scale, bias, mean, variance) -> y (after ReLU, if it is on), the running mean and variance
// updated with weight 1 - momentum, and the mean and inverse deviation 1 / sqrt(variance + epsilon)
// of the batch.
class BatchNorm : public ExtensionOpOf<BatchNorm, BatchNormAttributes> {
 public:
  OPENVINO_OP("BatchNorm", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x, y_grad, scale, mean, inverse deviation) -> the gradients of x, scale and bias. With a ReLU, y
// is a sixth input, and the gradient is zero where y was clipped.
class BatchNormGrad : public ExtensionOpOf<BatchNormGrad, BatchNormGradAttributes> {
 public:
  OPENVINO_OP("BatchNormGrad", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
