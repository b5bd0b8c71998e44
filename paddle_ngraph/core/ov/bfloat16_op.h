// ToBfloat16, FromBfloat16, RoundToBfloat16, ToChannelsLast: elementwise conversions between
// float32 and bfloat16 with the rounding of Paddle's casts. Results of the plugin's own conversions
// depend on the processor.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// Base of the operators below, which convert to or from bfloat16: output 0 has the shape of input 0
// and another element type.
class Bfloat16Conversion : public OperatorWith<NoAttributes> {
 protected:
  using OperatorWith::OperatorWith;
  bool supports_dynamic_shapes() const override { return true; }
  void infer_from(const ov::element::Type& from, const ov::element::Type& to);
};

// (x) -> x in bfloat16, each element rounded to nearest, ties to even. All NaNs become one NaN, and
// values beyond the largest bfloat16 become infinite.
class ToBfloat16 : public OperatorIn<ToBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("ToBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x) in bfloat16 -> x in float32, exact. float32 is accepted and passed through: OpenVINO widens
// constants itself before it computes with them.
class FromBfloat16 : public OperatorIn<FromBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("FromBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x) -> x, a float32 tensor, with each element rounded to the nearest bfloat16 value.
class RoundToBfloat16 : public OperatorIn<RoundToBfloat16, Bfloat16Conversion> {
 public:
  OPENVINO_OP("RoundToBfloat16", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (x [N, C, H, W], or blocked) -> [N, 1, H, W, C], rounded as by ToBfloat16. Padding lanes of the
// last block are retained.
class ToChannelsLast : public ExtensionOpOf<ToChannelsLast> {
 public:
  OPENVINO_OP("ToChannelsLast", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
