// 2-D convolution and its gradients with oneDNN's kernels, in the blocked layout of these kernels:
// channels in blocks, [N, ceil(C / block), H, W, block]. The work is divided over samples, groups,
// blocks of channels and rows (work_division.h); each of the plugin's threads executes its own
// kernels. The filter's shape gives the number of channels without padding.
//
// All tensors are float32, or the data and the output gradients that an operator reads are
// bfloat16: the operator then rounds its filter itself. Sums and results are float32. bfloat16
// inputs may have channels last, [N, 1, H, W, C], as AMX's kernels need; results are blocked in
// either case.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// Attributes of a convolution of [N, C, H, W] with [O, C / groups, KH, KW].
struct ConvAttributes {
  std::vector<int64_t> strides{1, 1};
  std::vector<int64_t> pads_begin{0, 0};
  std::vector<int64_t> pads_end{0, 0};
  std::vector<int64_t> dilations{1, 1};
  int64_t groups = 1;
};

struct ConvOpAttributes : ConvAttributes {
  std::vector<int64_t> sizes{0};  // sizes that the inputs do not determine: see each operator
  bool channels_last = false;     // whether the inputs have channels last

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("strides", strides);
    visit("pads_begin", pads_begin);
    visit("pads_end", pads_end);
    visit("dilations", dilations);
    visit("groups", groups);
    visit("sizes", sizes);
    visit("channels_last", channels_last);
  }
};

enum class ConvKind { forward, data_gradient, filter_gradient };

// One of the three computations with all its sizes, which include padding channels.
struct ConvProblem {
  ConvKind kind = ConvKind::forward;
  ConvAttributes attributes;
  // whether the kernels compute in bfloat16: on data, output gradient and reordered filter
  bool bfloat16 = false;
  bool channels_last = false;  // whether inputs, and outputs of the kernels, have channels last
  bool has_groups = false;  // whether there are groups, perhaps a single one in a chunk of channels
  ov::Shape data;           // [N, C, H, W]
  ov::Shape filter;         // [O, C / groups, KH, KW]
  ov::Shape out;            // [N, O, OH, OW]
  ov::Shape given;          // shape of the filter without padding
  int64_t data_block = 1;   // number of channels of a block; 1: plain layout
  int64_t out_block = 8;
};

class ConvPlan;

class ConvOp : public OperatorWith<ConvOpAttributes> {
 public:
  OPENVINO_OP("ConvOp", "paddle_ngraph", ExtensionOp);

  using OperatorWith<ConvOpAttributes>::OperatorWith;

 protected:
  virtual ConvKind kind() const = 0;
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  ConvProblem problem() const;
  int64_t read_block(
      const ov::Shape& shape) const;  // block size by which the layout of the inputs is divisible
  // Size of the output of the forward convolution.
  size_t out_size(const ConvProblem& p, size_t axis) const;

  mutable std::mutex mutex_;
  mutable std::shared_ptr<const ConvPlan> plan_;
};

// (data, filter) -> out [N, ceil(O / block), OH, OW, block]; attribute `sizes` is [block]. Data is
// blocked, or plain [N, C, H, W] if it has few channels.
class BlockedConvolution : public OperatorIn<BlockedConvolution, ConvOp> {
 public:
  OPENVINO_OP("BlockedConvolution", "paddle_ngraph", ConvOp);

 protected:
  ConvKind kind() const override { return ConvKind::forward; }
};

// (out_grad, filter) -> the gradient of the data, blocked like out_grad; `sizes` is [H, W]. If
// out_grad has channels last, the gradient has blocks of `block`, and `sizes` is [H, W, block].
class BlockedConvolutionDataGrad : public OperatorIn<BlockedConvolutionDataGrad, ConvOp> {
 public:
  OPENVINO_OP("BlockedConvolutionDataGrad", "paddle_ngraph", ConvOp);

 protected:
  ConvKind kind() const override { return ConvKind::data_gradient; }
};

// (data, out_grad) -> the gradient of the filter; `sizes` is its shape, [O, C / groups, KH, KW].
class BlockedConvolutionFilterGrad : public OperatorIn<BlockedConvolutionFilterGrad, ConvOp> {
 public:
  OPENVINO_OP("BlockedConvolutionFilterGrad", "paddle_ngraph", ConvOp);

 protected:
  ConvKind kind() const override { return ConvKind::filter_gradient; }
};

}  // namespace paddle_ngraph
