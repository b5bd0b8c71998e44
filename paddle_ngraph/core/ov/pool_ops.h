// 2-D pooling as native Paddle computes it: windows cut at the border, the first maximum takes the
// gradient, NaN and infinities as in a running comparison. Data is [N, C, H, W], or with channels
// in blocks of 8 or 16, [N, C / block, H, W, block], where no positions are asked for.
#pragma once

#include <vector>

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// The window of one output position along one axis, cut at the border of the input.
struct PoolWindow {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t divisor = 0;  // what an average divides by
};

// The attributes of pooling along height and width.
struct PoolAttributes {
  std::vector<int64_t> kernel{1, 1};
  std::vector<int64_t> strides{1, 1};
  std::vector<int64_t> pads{0, 0};  // above and to the left; the output size implies the others
  std::vector<int64_t> output{1, 1};
  bool adaptive = false;  // windows follow from input and output size alone
  bool exclusive = true;  // averages leave padding out
};

class PoolOp : public ExtensionOp {
 public:
  OPENVINO_OP("PoolOp", "paddle_ngraph", ExtensionOp);

  PoolOp() = default;
  PoolOp(const ov::OutputVector& inputs, PoolAttributes attributes)
      : ExtensionOp(inputs), attributes_(std::move(attributes)) {}

  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  // Requires input `index` to be float32 in one of the two layouts.
  void require_planes(size_t index) const;
  ov::Shape pooled_shape(const ov::Shape& input) const;
  std::vector<PoolWindow> windows(int64_t input, size_t axis) const;

  const PoolAttributes& attributes() const { return attributes_; }
  void check_attributes() const;

 private:
  PoolAttributes attributes_;
};

// x [N, C, H, W] -> the maxima [N, C, OH, OW].
class MaxPool : public PoolOp {
 public:
  OPENVINO_OP("MaxPool", "paddle_ngraph", PoolOp);

  MaxPool() = default;
  MaxPool(const ov::OutputVector& inputs, const PoolAttributes& attributes)
      : PoolOp(inputs, attributes) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x, out, out_grad) -> x_grad: the first element of a window that equals `out` gets its gradient.
class MaxPoolGrad : public PoolOp {
 public:
  OPENVINO_OP("MaxPoolGrad", "paddle_ngraph", PoolOp);

  MaxPoolGrad() = default;
  MaxPoolGrad(const ov::OutputVector& inputs, const PoolAttributes& attributes)
      : PoolOp(inputs, attributes) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// x [N, C, H, W] -> the maxima and their positions in H * W (i32), [N, C, OH, OW] each. NaN is left
// out; the position is -1 where there is nothing but NaN and -inf.
class MaxPoolWithIndex : public PoolOp {
 public:
  OPENVINO_OP("MaxPoolWithIndex", "paddle_ngraph", PoolOp);

  MaxPoolWithIndex() = default;
  MaxPoolWithIndex(const ov::OutputVector& inputs, const PoolAttributes& attributes)
      : PoolOp(inputs, attributes) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (mask, out_grad) [N, C, OH, OW] -> x_grad [N, C, H, W]; attribute `input` is [H, W].
class MaxPoolWithIndexGrad : public ExtensionOp {
 public:
  OPENVINO_OP("MaxPoolWithIndexGrad", "paddle_ngraph", ExtensionOp);

  MaxPoolWithIndexGrad() = default;
  MaxPoolWithIndexGrad(const ov::OutputVector& inputs, std::vector<int64_t> input)
      : ExtensionOp(inputs), input_(std::move(input)) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  std::vector<int64_t> input_{1, 1};
};

// x [N, C, H, W] -> the averages [N, C, OH, OW].
class AvgPool : public PoolOp {
 public:
  OPENVINO_OP("AvgPool", "paddle_ngraph", PoolOp);

  AvgPool() = default;
  AvgPool(const ov::OutputVector& inputs, const PoolAttributes& attributes)
      : PoolOp(inputs, attributes) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// out_grad [N, C, OH, OW] -> x_grad [N, C, H, W]; attribute `input` is [H, W].
class AvgPoolGrad : public PoolOp {
 public:
  OPENVINO_OP("AvgPoolGrad", "paddle_ngraph", PoolOp);

  AvgPoolGrad() = default;
  AvgPoolGrad(const ov::OutputVector& inputs, const PoolAttributes& attributes,
              std::vector<int64_t> input)
      : PoolOp(inputs, attributes), input_(std::move(input)) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  std::vector<int64_t> input_{1, 1};
};

}  // namespace paddle_ngraph
