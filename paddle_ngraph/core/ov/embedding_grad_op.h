// EmbeddingGrad: the dense gradient of an embedding table.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct EmbeddingGradAttributes {
  int64_t rows = 0;
  int64_t padding_idx = -1;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("rows", rows);
    visit("padding_idx", padding_idx);
  }
};

// (ids [N], grad [N, D]) -> [rows, D]: row r is the sum of the rows grad[i] with ids[i] = r, in the
// order of i; rows without an id are zero. The row `padding_idx` stays zero; negative means none.
class EmbeddingGrad : public ExtensionOpOf<EmbeddingGrad, EmbeddingGradAttributes> {
 public:
  OPENVINO_OP("EmbeddingGrad", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Id>
  void add_rows(const Id* ids, const ov::Tensor& grad, float* out) const;
};

}  // namespace paddle_ngraph
