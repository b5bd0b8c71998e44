// Between [N, C, H, W] and the layout of the convolutions, [N, ceil(C / block), H, W, block].
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// x in either layout -> the same with `block` channels side by side; 1: plain. Of the channels of a
// blocked x the first `channels` count, 0: all; what fills up the result's last block is 0.
class Reblock : public ExtensionOp {
 public:
  OPENVINO_OP("Reblock", "paddle_ngraph", ExtensionOp);

  Reblock() = default;
  Reblock(const ov::OutputVector& inputs, int64_t block, int64_t channels)
      : ExtensionOp(inputs), block_(block), channels_(channels) {
    constructor_validate_and_infer_types();
  }
  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  int64_t channels_of(const ov::Shape& shape) const;

  int64_t block_ = 8;
  int64_t channels_ = 0;
};

}  // namespace paddle_ngraph
