// Integer addition, subtraction and multiplication that reject a run whose result overflows int32.
#pragma once

#include "core/ov/deferred_errors.h"

namespace paddle_ngraph {

struct CheckedAttributes {
  ErrorAttributes error;
  int64_t deferred_errors_id = DeferredErrors::kNone;

  template <typename Visit>
  void visit(const Visit& visit) {
    error.visit(visit);
    visit("findings", deferred_errors_id);
  }
};

// Base of the checked operators: x, y -> out, of one shape; x and y are int32, or int64 with values
// representable in int32; out is int32. Rejects the run with `error` if an element of out
// overflows int32.
class CheckedArithmetic : public OperatorWith<CheckedAttributes, ContentCheckOp> {
 public:
  OPENVINO_OP("CheckedArithmetic", "paddle_ngraph", ContentCheckOp);

  using OperatorWith<CheckedAttributes, ContentCheckOp>::OperatorWith;

  void set_deferred_errors_id(int64_t id) override { attributes().deferred_errors_id = id; }

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;

  template <typename Function>
  void compute_each(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                    const Function& function) const;

 private:
  template <typename Number, typename Function>
  void compute_of(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                  const Function& function) const;
};

class CheckedAdd : public OperatorIn<CheckedAdd, CheckedArithmetic> {
 public:
  OPENVINO_OP("CheckedAdd", "paddle_ngraph", CheckedArithmetic);

 protected:
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

class CheckedSubtract : public OperatorIn<CheckedSubtract, CheckedArithmetic> {
 public:
  OPENVINO_OP("CheckedSubtract", "paddle_ngraph", CheckedArithmetic);

 protected:
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

class CheckedMultiply : public OperatorIn<CheckedMultiply, CheckedArithmetic> {
 public:
  OPENVINO_OP("CheckedMultiply", "paddle_ngraph", CheckedArithmetic);

 protected:
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
