// Attention of one position to a cache of keys and values, as a decoder computes it for each token.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct AttentionAttributes {
  double scale = 1;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("scale", scale);
  }
};

// (q [..., H, 1, D], k [..., G, L, D], v [..., G, L, E], mask [..., L]) -> out [..., H, 1, E]:
// out = softmax(scale * q k^T + mask) v, with the softmax of RowSoftmax. The mask may be missing.
//
// Each key and value serves H / G queries in a row. The mask has one row for all queries, one for
// each sample (axis 0), or one for each query. L may be dynamic, and the plugin prepares nothing
// anew when L grows, since the shape of the result stays the same.
class Attention : public ExtensionOpOf<Attention, AttentionAttributes> {
 public:
  OPENVINO_OP("Attention", "paddle_ngraph", ExtensionOp);

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
