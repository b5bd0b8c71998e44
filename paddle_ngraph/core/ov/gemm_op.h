// Gemm: the product of two matrices, by oneDNN.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// (a [M, K], b [K, N]) -> [M, N], float32; with transpose_a, a is [K, M], with transpose_b, b is
// [N, K]. oneDNN: https://uxlfoundation.github.io/oneDNN/v3.6/group_dnnl_api_blas.html
class Gemm : public ExtensionOp {
 public:
  OPENVINO_OP("Gemm", "paddle_ngraph", ExtensionOp);

  Gemm() = default;
  Gemm(const ov::OutputVector& inputs, bool transpose_a, bool transpose_b);

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  bool transpose_a_ = false;
  bool transpose_b_ = false;
};

}  // namespace paddle_ngraph
