// EndAfterError: ends a loop in which a kernel has failed.
#pragma once

#include "core/ov/deferred_errors.h"

namespace paddle_ngraph {

struct EndAfterErrorAttributes {
  int64_t deferred_errors_id = DeferredErrors::kNone;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("findings", deferred_errors_id);
  }
};

// condition -> condition, false once the run has reported an error. A kernel that fails in a model
// with dynamic shapes yields zeros, with which the condition might stay true for ever.
class EndAfterError
    : public OperatorIn<EndAfterError, OperatorWith<EndAfterErrorAttributes, ContentCheckOp>> {
 public:
  OPENVINO_OP("EndAfterError", "paddle_ngraph", ContentCheckOp);

  void set_deferred_errors_id(int64_t id) override { attributes().deferred_errors_id = id; }
  bool constant_fold(ov::OutputVector&, const ov::OutputVector&) override { return false; }

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
