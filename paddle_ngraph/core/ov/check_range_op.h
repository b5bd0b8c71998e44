// CheckRange: converts integers to int32, and rejects the run if one is out of range.
#pragma once

#include "core/ov/deferred_errors.h"

namespace paddle_ngraph {

struct CheckRangeAttributes {
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  bool has_ignored = false;
  int64_t ignored = 0;
  ErrorAttributes error;
  int64_t deferred_errors_id = DeferredErrors::kNone;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("low", low);
    visit("high", high);
    visit("has_ignored", has_ignored);
    visit("ignored", ignored);
    error.visit(visit);
    visit("findings", deferred_errors_id);
  }
};

// ids [..., N] -> ids in int32. Every element at index n of the last axis must satisfy low[n % N']
// <= value < high[n % N'], or equal `ignored` when `has_ignored`; N' is the number of bounds, 1 if
// all elements have the same ones. Otherwise rejects the run with `error`; the output is in range
// even then.
class CheckRange
    : public OperatorIn<CheckRange, OperatorWith<CheckRangeAttributes, ContentCheckOp>> {
 public:
  OPENVINO_OP("CheckRange", "paddle_ngraph", ContentCheckOp);

  void set_deferred_errors_id(int64_t id) override { attributes().deferred_errors_id = id; }

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Id>
  void check(const Id* ids, size_t count, int32_t* out) const;
};

}  // namespace paddle_ngraph
