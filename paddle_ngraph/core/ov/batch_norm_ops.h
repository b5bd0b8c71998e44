// Batch normalization in training and its gradient: statistics and result in one go over the data
// of a few channels, while these are in the cache.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// An activation that follows: max(y, 0), or min(max(y, 0), ceiling) where the ceiling is not 0.
struct Rectifier {
  bool is_on = false;
  double ceiling = 0;
};

// Data is [N, C / block, S, block] or [N, C / block, H, W, block]: block 1 for channels first, C
// for channels last, what the convolutions use between. Everything of a channel is [C].

// (x, scale, bias, mean, variance) -> y, rectified or not, the running mean and variance moved by 1
// - momentum, and the batch's mean and inverse deviation 1 / sqrt(variance + epsilon).
class BatchNorm : public ExtensionOp {
 public:
  OPENVINO_OP("BatchNorm", "paddle_ngraph", ExtensionOp);

  BatchNorm() = default;
  BatchNorm(const ov::OutputVector& inputs, double epsilon, double momentum, Rectifier rectifier)
      : ExtensionOp(inputs), epsilon_(epsilon), momentum_(momentum), rectifier_(rectifier) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  double epsilon_ = 1e-5;
  double momentum_ = 0.9;
  Rectifier rectifier_;
};

// (x, y_grad, scale, mean, inverse deviation) -> the gradients of x, scale and bias. Of a rectified
// y the gradient counts where y, a sixth input, was not held back.
class BatchNormGrad : public ExtensionOp {
 public:
  OPENVINO_OP("BatchNormGrad", "paddle_ngraph", ExtensionOp);

  BatchNormGrad() = default;
  BatchNormGrad(const ov::OutputVector& inputs, Rectifier rectifier)
      : ExtensionOp(inputs), rectifier_(rectifier) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  Rectifier rectifier_;
};

}  // namespace paddle_ngraph
