// Layer normalization and its gradient, each in one pass over the rows.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct LayerNormAttributes {
  double epsilon = 1e-5;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("epsilon", epsilon);
  }
};

// (x [R, L], scale [L], bias [L]) -> y = (x - mean) / sqrt(variance + epsilon) * scale + bias, and
// the mean and variance of each row, [R].
class LayerNorm : public ExtensionOpOf<LayerNorm, LayerNormAttributes> {
 public:
  OPENVINO_OP("LayerNorm", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x, y_grad [R, L], scale [L], mean, variance [R]) -> the gradients of x, scale and bias.
class LayerNormGrad : public ExtensionOpOf<LayerNormGrad, LayerNormAttributes> {
 public:
  OPENVINO_OP("LayerNormGrad", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
