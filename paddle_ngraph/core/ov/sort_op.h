// Sort: the first elements of each row in order, and where they came from.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// x [..., N] float32 -> values [..., k] float32, positions [..., k] int32, along the last axis.
// A NaN is greater than infinity. The order of equal elements is the one that Paddle's CPU kernels
// get from the C++ library: those of `argsort` (stable_sort or sort), and with `search` of `topk`
// (partial_sort, or nth_element and, where `sorted`, sort).
class Sort : public ExtensionOp {
 public:
  OPENVINO_OP("Sort", "paddle_ngraph", ExtensionOp);

  Sort() = default;
  explicit Sort(const ov::OutputVector& inputs) : ExtensionOp(inputs) {}

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
  bool visit_attributes(ov::AttributeVisitor& visitor) override;

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Elements, typename Before>
  void sort(Elements* elements, const Before& before) const;

  int64_t k_ = 1;
  bool descending_ = false;
  bool stable_ = false;
  bool search_ = false;
  bool sorted_ = true;
};

}  // namespace paddle_ngraph
