// ArgMax: the indices of the largest elements along an axis.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct ArgMaxAttributes {
  int64_t axis = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("axis", axis);
  }
};

// x [..., L, ...] float32 -> [..., 1, ...] int32: the first index of the largest element along the
// axis. Paddle's `argmax` starts its search with the lowest finite float as the maximum; therefore
// NaN is never selected, -inf is treated as that float, and the index is 0 if no element exceeds
// it.
class ArgMax : public ExtensionOpOf<ArgMax, ArgMaxAttributes> {
 public:
  OPENVINO_OP("ArgMax", "paddle_ngraph", ExtensionOp);

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  ov::Shape dynamic_output_shape(const ov::TensorVector& inputs) const override;
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
