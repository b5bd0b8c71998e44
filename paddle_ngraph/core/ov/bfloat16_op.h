// ToBfloat16: rounds float32 to bfloat16.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// (x) -> x, every number rounded to the nearest bfloat16, ties to even. NaN stays NaN, and what is
// beyond the largest bfloat16 becomes infinite. The plugin's own conversion depends on the
// processor.
class ToBfloat16 : public OperatorOf<ToBfloat16> {
 public:
  OPENVINO_OP("ToBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  bool allows_open_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
