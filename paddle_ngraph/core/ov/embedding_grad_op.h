// EmbeddingGrad: the dense gradient of an embedding table.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// (ids [N], grad [N, D]) -> [rows, D]: row ids[i] is the sum of the rows grad[i], in the order of
// i; rows that no id names are zero. Rows of `padding_idx` stay zero; a negative one stands for
// none.
class EmbeddingGrad : public ExtensionOp {
 public:
  OPENVINO_OP("EmbeddingGrad", "paddle_ngraph", ExtensionOp);

  EmbeddingGrad() = default;
  EmbeddingGrad(const ov::OutputVector& inputs, int64_t rows, int64_t padding_idx);

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Id>
  void add_rows(const Id* ids, const ov::Tensor& grad, float* out) const;

  int64_t rows_ = 0;
  int64_t padding_idx_ = -1;
};

}  // namespace paddle_ngraph
