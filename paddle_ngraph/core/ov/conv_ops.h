// 2-D convolution and its gradients with oneDNN's kernels, in the layout that suits them: channels
// in blocks, [N, ceil(C / block), H, W, block]. The work is divided over samples, groups, blocks of
// channels and rows (work_division.h); each of the plugin's threads runs kernels of its own.
// The filter's shape gives the number of channels without padding.
//
// All is float32, or what is read is bfloat16, if data and gradients are: an operator then rounds
// its filter itself. Sums and results are float32. What is read in bfloat16 may have its channels
// last, [N, 1, H, W, C], which AMX's kernels need; results are in blocks all the same.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// The attributes of a convolution of [N, C, H, W] with [O, C / groups, KH, KW].
struct ConvAttributes {
  std::vector<int64_t> strides{1, 1};
  std::vector<int64_t> pads_begin{0, 0};
  std::vector<int64_t> pads_end{0, 0};
  std::vector<int64_t> dilations{1, 1};
  int64_t groups = 1;
};

struct ConvOpAttributes : ConvAttributes {
  std::vector<int64_t> sizes{0};  // what the operator says of them
  bool channels_last = false;     // in what is read

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

// One of the three computations with all its sizes; padding counts as channels.
struct ConvProblem {
  ConvKind kind = ConvKind::forward;
  ConvAttributes attributes;
  bool bfloat16 = false;       // what is read: data, output gradient, and the filter once reordered
  bool channels_last = false;  // what is read, and what the kernels write
  bool has_groups = false;     // one of a part of the channels also has where it holds one group
  ov::Shape data;              // [N, C, H, W]
  ov::Shape filter;            // [O, C / groups, KH, KW]
  ov::Shape out;               // [N, O, OH, OW]
  ov::Shape given;             // the filter without padding
  int64_t data_block = 1;      // 1: plain
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
  int64_t read_block(const ov::Shape& shape) const;          // in which what is read can be divided
  size_t out_size(const ConvProblem& p, size_t axis) const;  // of the forward convolution

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

// (out_grad, filter) -> the data's gradient, blocked like out_grad; `sizes` is [H, W]. Or in blocks
// of `block`, if out_grad has its channels last; `sizes` is [H, W, block].
class BlockedConvolutionDataGrad : public OperatorIn<BlockedConvolutionDataGrad, ConvOp> {
 public:
  OPENVINO_OP("BlockedConvolutionDataGrad", "paddle_ngraph", ConvOp);

 protected:
  ConvKind kind() const override { return ConvKind::data_gradient; }
};

// (data, out_grad) -> the filter's gradient; `sizes` is its shape, [O, C / groups, KH, KW].
class BlockedConvolutionFilterGrad : public OperatorIn<BlockedConvolutionFilterGrad, ConvOp> {
 public:
  OPENVINO_OP("BlockedConvolutionFilterGrad", "paddle_ngraph", ConvOp);

 protected:
  ConvKind kind() const override { return ConvKind::filter_gradient; }
};

}  // namespace paddle_ngraph
