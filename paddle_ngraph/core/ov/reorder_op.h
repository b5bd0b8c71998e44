// Conversion between [N, C, H, W] and the layout of the convolutions, [N, ceil(C / block), H, W,
// block].
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct BlockedReorderAttributes {
  int64_t block = 8;
  int64_t channels = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("block", block);
    visit("channels", channels);
  }
};

// x in either layout -> x with blocks of `block` channels; 1: plain. Only the first `channels`
// channels of a blocked x are converted, 0: all; the padding of the output's last block is 0.
class BlockedReorder : public ExtensionOpOf<BlockedReorder, BlockedReorderAttributes> {
 public:
  OPENVINO_OP("BlockedReorder", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  int64_t channels_of(const ov::Shape& shape) const;
};

}  // namespace paddle_ngraph
