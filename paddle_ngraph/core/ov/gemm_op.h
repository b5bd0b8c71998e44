// Gemm: the product of two matrices, by oneDNN.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct GemmAttributes {
  bool transpose_a = false;
  bool transpose_b = false;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("transpose_a", transpose_a);
    visit("transpose_b", transpose_b);
  }
};

// (a [M, K], b [K, N]) -> [M, N], float32; with transpose_a, a is [K, M], with transpose_b, b is
// [N, K]. oneDNN: https://uxlfoundation.github.io/oneDNN/v3.6/group_dnnl_api_blas.html
class Gemm : public OperatorOf<Gemm, GemmAttributes> {
 public:
  OPENVINO_OP("Gemm", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
