// CheckRange: hands whole numbers on as int32, and stops the run where one is out of range.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// ids [..., N] -> the same as int32, where every element at position n of the last axis must hold
// low[n % N'] <= value < high[n % N'], or equal `ignored` when `has_ignored`; N' is the number of
// bounds, 1 where all elements have the same. Throws InvalidInput with `message` otherwise.
class CheckRange : public ExtensionOp {
 public:
  OPENVINO_OP("CheckRange", "paddle_ngraph", ExtensionOp);

  CheckRange() = default;
  explicit CheckRange(const ov::OutputVector& inputs) : ExtensionOp(inputs) {}

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  bool allows_open_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Id>
  void check(const Id* ids, size_t count, int32_t* out) const;

  std::vector<int64_t> low_;
  std::vector<int64_t> high_;
  bool has_ignored_ = false;
  int64_t ignored_ = 0;
  std::string message_;
};

}  // namespace paddle_ngraph
