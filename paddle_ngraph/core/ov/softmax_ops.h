// Softmax of rows and its gradient; all passes over a row run while it is in the cache.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// x [..., L] -> y = exp(s) / sum(exp(s)) with s = max(x - max(x), -64), as in Paddle. A row with
// a NaN or +inf becomes NaN; so does one of nothing but -inf, unless its length is a multiple of 8.
class RowSoftmax : public ExtensionOpOf<RowSoftmax> {
 public:
  OPENVINO_OP("RowSoftmax", "paddle_ngraph", ExtensionOp);

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (y, y_grad [..., L]) -> x_grad = (y_grad - sum(y * y_grad)) * y, for y = softmax(x).
class RowSoftmaxGrad : public ExtensionOpOf<RowSoftmaxGrad> {
 public:
  OPENVINO_OP("RowSoftmaxGrad", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
