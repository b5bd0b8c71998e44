// Sort: the first elements of each row in sorted order, and their original indices.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct SortAttributes {
  int64_t k = 1;
  bool descending = false;
  bool stable = false;
  bool search = false;
  bool sorted = true;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("k", k);
    visit("descending", descending);
    visit("stable", stable);
    visit("search", search);
    visit("sorted", sorted);
  }
};

// x [..., N] float32 -> values [..., k] float32, indices [..., k] int32, along the last axis. A NaN
// is greater than infinity. Equal elements are ordered as by the C++ library functions that
// Paddle's CPU kernels call: for `argsort` stable_sort or sort, and, with `search`, for `topk`
// partial_sort, or nth_element and, where `sorted`, sort.
class Sort : public ExtensionOpOf<Sort, SortAttributes> {
 public:
  OPENVINO_OP("Sort", "paddle_ngraph", ExtensionOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  template <typename Elements, typename Before>
  void sort(Elements* elements, const Before& before) const;
};

}  // namespace paddle_ngraph
