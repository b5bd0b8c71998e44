// ShapeBarrier: hides from nGraph how large a tensor is.
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

// (x, another) -> x, whose sizes along `axes` are open. What a loop starts from keeps them open in
// its turns so; nGraph finds out by itself that a turn adds to them only where something reads the
// result. The other input is not read: while a run gives it, x is no constant either, whose size
// would be known. Without axes it keeps what an If makes (conversion/passes/plugin_workarounds.py).
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
