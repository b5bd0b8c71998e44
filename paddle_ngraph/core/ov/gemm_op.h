// Gemm, Bfloat16Gemm: nGraph operators that multiply matrices with oneDNN.
#pragma once

#include <memory>
#include <utility>

#include "core/common/lru_cache.h"
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
class Gemm : public ExtensionOpOf<Gemm, GemmAttributes> {
 public:
  OPENVINO_OP("Gemm", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

struct Bfloat16GemmAttributes : GemmAttributes {
  bool rounds = false;  // whether the results are rounded to bfloat16

  template <typename Visit>
  void visit(const Visit& visit) {
    GemmAttributes::visit(visit);
    visit("rounds", rounds);
  }
};

class Bfloat16GemmPlan;

// (a [..., M, K], b [..., K, N]), bfloat16 -> [..., M, N], float32, summed in float32. Both inputs
// have the same batch dimensions; transposed as in Gemm. Dimensions may be dynamic; none is 0.
// oneDNN: https://uxlfoundation.github.io/oneDNN/v3.6/dev_guide_matmul.html
class Bfloat16Gemm : public ExtensionOpOf<Bfloat16Gemm, Bfloat16GemmAttributes> {
 public:
  OPENVINO_OP("Bfloat16Gemm", "paddle_ngraph", ExtensionOp);

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  ov::Shape dynamic_output_shape(const ov::TensorVector& inputs) const override;
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  // Returns the shape of the matmul of `a` and `b`; throws if their shapes do not match.
  ov::PartialShape product_of(ov::PartialShape a, ov::PartialShape b) const;
  std::shared_ptr<const Bfloat16GemmPlan> plan_for(const ov::Shape& a, const ov::Shape& out) const;

  // The plans of the last shapes, keyed by the shapes of `a` and of the output.
  using Plans = LruCache<std::pair<ov::Shape, ov::Shape>, std::shared_ptr<const Bfloat16GemmPlan>>;
  mutable Plans plans_{32};
};

}  // namespace paddle_ngraph
