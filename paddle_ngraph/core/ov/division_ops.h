// Floored division and its remainder, exact for float32 and int32: the CPU plugin has neither.
#pragma once

#include "core/ov/deferred_errors.h"

namespace paddle_ngraph {

struct FlooredDivisionAttributes {
  int64_t deferred_errors_id = DeferredErrors::kNone;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("findings", deferred_errors_id);
  }
};

// Base of both: x, y -> out, of one shape and one type, float32 or int32. Rejects the run if an
// integer is divided by 0.
class FlooredDivision : public OperatorWith<FlooredDivisionAttributes, ContentCheckOp> {
 public:
  OPENVINO_OP("FlooredDivision", "paddle_ngraph", ContentCheckOp);

  using OperatorWith<FlooredDivisionAttributes, ContentCheckOp>::OperatorWith;

  void set_deferred_errors_id(int64_t id) override { attributes().deferred_errors_id = id; }

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;

  template <typename Float, typename Integer>
  void compute_each(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                    const Float& of_floats, const Integer& of_integers) const;
};

// (x, y) -> floor(x / y), as Paddle's `floor_divide` and Python's `//` compute it.
class FloorDivide : public OperatorIn<FloorDivide, FlooredDivision> {
 public:
  OPENVINO_OP("FloorDivide", "paddle_ngraph", FlooredDivision);

 protected:
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// The remainder x - floor(x / y) * y, with the sign of y: Paddle's `remainder`, Python's `%`.
class Remainder : public OperatorIn<Remainder, FlooredDivision> {
 public:
  OPENVINO_OP("Remainder", "paddle_ngraph", FlooredDivision);

 protected:
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
