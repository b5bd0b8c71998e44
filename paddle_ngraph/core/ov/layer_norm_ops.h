// Layer normalization and its gradient, each in one walk over the rows.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// (x [R, L], scale [L], bias [L]) -> y = (x - mean) / sqrt(variance + epsilon) * scale + bias, and
// the mean and variance of each row, [R].
class LayerNorm : public ExtensionOp {
 public:
  OPENVINO_OP("LayerNorm", "paddle_ngraph", ExtensionOp);

  LayerNorm() = default;
  LayerNorm(const ov::OutputVector& inputs, double epsilon)
      : ExtensionOp(inputs), epsilon_(epsilon) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  double epsilon_ = 1e-5;
};

// (x, y_grad [R, L], scale [L], mean, variance [R]) -> the gradients of x, scale and bias.
class LayerNormGrad : public ExtensionOp {
 public:
  OPENVINO_OP("LayerNormGrad", "paddle_ngraph", ExtensionOp);

  LayerNormGrad() = default;
  LayerNormGrad(const ov::OutputVector& inputs, double epsilon)
      : ExtensionOp(inputs), epsilon_(epsilon) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  double epsilon_ = 1e-5;
};

}  // namespace paddle_ngraph
