// KernelCall: calls a kernel of Paddle inside a function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ov/deferred_errors.h"
#include "core/ov/paddle_kernel.h"

namespace paddle_ngraph {

struct KernelCallAttributes {
  std::string kernel;  // the description of the kernel and its arguments
  // The shape of each result, for a function with dynamic shapes: the rank, then each size. A size
  // is (sum of terms + offset) / divisor, rounded down: the number of terms, each term, offset and
  // divisor; without terms the offset, or kOpenSize. A term is a product of sizes of inputs and a
  // factor: the number of sizes, for each input and axis, and the factor. Empty: as Paddle's shape
  // inference says.
  std::vector<int64_t> shapes;
  int64_t op_id = kNoOperator;
  int64_t deferred_errors_id = DeferredErrors::kNone;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("kernel", kernel);
    visit("shapes", shapes);
    visit("op_id", op_id);
    visit("findings", deferred_errors_id);
  }

  // Of `kernel`, shared by the copies of a node: the plugin copies it for each new shape.
  std::shared_ptr<const PaddleKernel> made;
};

// The operands of an operator of Paddle -> its results, members of lists one after the other. The
// kernel works on the memory of the function: nothing is copied but 64-bit integers, and results
// whose size depends on data. If the kernel throws, the run is rejected with its reason, so that
// Paddle runs the subgraph.
class KernelCall
    : public OperatorIn<KernelCall, OperatorWith<KernelCallAttributes, ContentCheckOp>> {
 public:
  OPENVINO_OP("KernelCall", "paddle_ngraph", ContentCheckOp);

  void set_deferred_errors_id(int64_t id) override { attributes().deferred_errors_id = id; }

 protected:
  bool supports_dynamic_shapes() const override { return true; }
  ov::Shape dynamic_output_shape(const ov::TensorVector&) const override { return {0}; }
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;

 private:
  static constexpr int64_t kOpenSize = -1;

  // Iterates over the words of the attribute `shapes`.
  class Words;

  // The shapes of the results for inputs of these shapes, by the attribute `shapes`.
  std::vector<std::vector<int64_t>> shapes_for(
      const std::vector<std::vector<int64_t>>& inputs) const;
  // A term, by the next words of the attribute `shapes`; nothing if it has an unknown size.
  std::optional<int64_t> term_by(Words* words,
                                 const std::vector<std::vector<int64_t>>& inputs) const;
  int64_t size_by(Words* words, const std::vector<std::vector<int64_t>>& inputs) const;
  // The shapes of the results in a run: kOpenSize where only the kernel knows a size.
  std::vector<std::vector<int64_t>> shapes_in_run(const ov::TensorVector& inputs) const;
  void run(const ov::TensorVector& inputs, ov::TensorVector* outputs) const;
  void fill_with_zeros(const ov::TensorVector& inputs, ov::TensorVector* outputs) const;
};

}  // namespace paddle_ngraph
