// 2-D pooling with the semantics of plain Paddle: windows are clipped at the border, the first
// maximum gets the gradient, NaN and infinities behave as in a sequential comparison. Data is [N,
// C, H, W] or, if no indices are requested, has channels in blocks of 8 or 16, [N, C / block, H, W,
// block].
#pragma once

#include <vector>

#include "core/ov/extension_ops.h"
#include "core/ov/kernels/pool.h"

namespace paddle_ngraph {

// Attributes of a 2-D pooling: values for height and width.
struct PoolAttributes {
  std::vector<int64_t> kernel{1, 1};
  std::vector<int64_t> strides{1, 1};
  // Padding at top and left; the output size determines that at bottom and right.
  std::vector<int64_t> pads{0, 0};
  std::vector<int64_t> output{1, 1};
  bool adaptive = false;             // whether input and output size alone determine the windows
  bool exclusive = true;             // whether averages exclude padding
  std::vector<int64_t> input{1, 1};  // size of the input, for gradients that cannot infer it

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("kernel", kernel);
    visit("strides", strides);
    visit("pads", pads);
    visit("output", output);
    visit("adaptive", adaptive);
    visit("exclusive", exclusive);
    visit("input", input);
  }
};

struct MaxPoolWithIndexGradAttributes {
  std::vector<int64_t> input{1, 1};

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("input", input);
  }
};

class PoolOp : public OperatorWith<PoolAttributes> {
 public:
  OPENVINO_OP("PoolOp", "paddle_ngraph", ExtensionOp);

  using OperatorWith<PoolAttributes>::OperatorWith;

 protected:
  // Requires input `index` to be float32 in one of the two layouts.
  void require_planes(size_t index) const;
  ov::Shape pooled_shape(const ov::Shape& input) const;
  Pooling pooling_of(const ov::Shape& input, const ov::Shape& output) const;
  void check_attributes() const;

 private:
  std::vector<PoolWindow> windows(int64_t input, size_t axis) const;
};

// x [N, C, H, W] -> the maxima [N, C, OH, OW].
class PaddleMaxPool : public OperatorIn<PaddleMaxPool, PoolOp> {
 public:
  OPENVINO_OP("PaddleMaxPool", "paddle_ngraph", PoolOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x, out, out_grad) -> x_grad: the first element of a window that equals `out` gets its gradient.
class PaddleMaxPoolGrad : public OperatorIn<PaddleMaxPoolGrad, PoolOp> {
 public:
  OPENVINO_OP("PaddleMaxPoolGrad", "paddle_ngraph", PoolOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// x [N, C, H, W] -> the maxima and their indices in H * W (i32), [N, C, OH, OW] each. NaN is
// ignored; the index is -1 if there are only NaN and -inf.
class MaxPoolWithIndex : public OperatorIn<MaxPoolWithIndex, PoolOp> {
 public:
  OPENVINO_OP("MaxPoolWithIndex", "paddle_ngraph", PoolOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (mask, out_grad) [N, C, OH, OW] -> x_grad [N, C, H, W]; attribute `input` is [H, W].
class MaxPoolWithIndexGrad
    : public ExtensionOpOf<MaxPoolWithIndexGrad, MaxPoolWithIndexGradAttributes> {
 public:
  OPENVINO_OP("MaxPoolWithIndexGrad", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// x [N, C, H, W] -> the averages [N, C, OH, OW].
class PaddleAvgPool : public OperatorIn<PaddleAvgPool, PoolOp> {
 public:
  OPENVINO_OP("PaddleAvgPool", "paddle_ngraph", PoolOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// out_grad [N, C, OH, OW] -> x_grad [N, C, H, W]; attribute `input` is [H, W].
class PaddleAvgPoolGrad : public OperatorIn<PaddleAvgPoolGrad, PoolOp> {
 public:
  OPENVINO_OP("PaddleAvgPoolGrad", "paddle_ngraph", PoolOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
