// ShapeBarrier: copies a tensor, and hides its size from nGraph's shape inference.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct ShapeBarrierAttributes {
  std::vector<int64_t> axes;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("axes", axes);
  }
};

// (x, another) -> x, with dynamic dimensions along `axes`. A loop whose initial values pass through
// it keeps these dimensions dynamic in its iterations; nGraph detects by itself that an iteration
// extends a loop-carried value only where the result has a reader. The data of the other input is
// not read: that input, which depends on a run, keeps x from being folded to a constant, whose size
// would be known. Without axes the operator preserves results of an If
// (conversion/passes/plugin_workarounds.py).
class ShapeBarrier : public ExtensionOpOf<ShapeBarrier, ShapeBarrierAttributes> {
 public:
  OPENVINO_OP("ShapeBarrier", "paddle_ngraph", ExtensionOp);

  bool constant_fold(ov::OutputVector&, const ov::OutputVector&) override { return false; }

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
