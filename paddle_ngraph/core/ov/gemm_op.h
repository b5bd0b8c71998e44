// Gemm, Bfloat16Gemm: the products of matrices, by oneDNN.
#pragma once

#include <memory>
#include <mutex>

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

class Bfloat16GemmPlan;

// (a [..., M, K], b [..., K, N]), bfloat16 -> [..., M, N], float32, summed in float32. Both have
// the same dimensions in front; transposed as in Gemm. No dimension is 0. oneDNN:
// https://uxlfoundation.github.io/oneDNN/v3.6/dev_guide_matmul.html
class Bfloat16Gemm : public OperatorOf<Bfloat16Gemm, GemmAttributes> {
 public:
  OPENVINO_OP("Bfloat16Gemm", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Bfloat16GemmPlan> plan_;
};

}  // namespace paddle_ngraph
