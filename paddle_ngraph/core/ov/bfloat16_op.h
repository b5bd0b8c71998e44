// ToBfloat16, FromBfloat16, RoundToBfloat16, ToChannelsLast: between float32 and bfloat16, element
// by element, as Paddle casts. The plugin's own conversions depend on the processor.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// What the three share: output 0 is input 0, with elements of another type.
class Bfloat16Conversion : public OperatorWith<NoAttributes> {
 protected:
  using OperatorWith::OperatorWith;
  bool supports_dynamic_shapes() const override { return true; }
  void infer_from(const ov::element::Type& from, const ov::element::Type& to);
};

// (x) -> x in bfloat16, every number rounded to the nearest one, ties to even. Every NaN becomes
// the same one, and what is beyond the largest bfloat16 infinite.
class ToBfloat16 : public OperatorIn<ToBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("ToBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x) in bfloat16 -> x in float32, every number as it is. float32 is let through: OpenVINO widens
// constants itself before it computes with them.
class FromBfloat16 : public OperatorIn<FromBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("FromBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x) -> x, rounded as ToBfloat16 does, in float32.
class RoundToBfloat16 : public OperatorIn<RoundToBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("RoundToBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x [N, C, H, W], or in blocks) -> [N, 1, H, W, C], rounded as ToBfloat16 does. What fills up the
// last block is kept.
class ToChannelsLast : public ExtensionOpOf<ToChannelsLast> {
 public:
  OPENVINO_OP("ToChannelsLast", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
