// Calls of Paddle's kernels (PHI) without Paddle's executor and Python, with the same results.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/infermeta_utils.h"
#include "paddle/phi/core/kernel_factory.h"

#include "runtime/tensor.h"

namespace native {

// The operands of an operator: for each operand a tensor, several for a list, none if absent.
using Operands = std::vector<Tensors>;

// An attribute of a kernel whose value is the contents of the operand `number`.
struct FromOperand {
  size_t number;
};

// The arguments of a kernel, or of the InferMeta function that infers its result shapes.
struct Arguments {
  std::vector<size_t> inputs;  // indices of the operands that the kernel reads
  std::vector<std::variant<phi::Attribute, FromOperand>> attributes;
};

// A result: a tensor, or a list of `size` tensors; an absent result has size 0.
struct Result {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t size = 1;
  bool is_list = false;
  size_t overwrites = kNone;  // index of the operand whose memory the result overwrites
};

// A CPU kernel of Paddle. Thread-safe.
class Kernel {
 public:
  // `lists`: the indices of the operands that are lists. Throws Error if PHI has no such kernel.
  Kernel(const std::string& name, phi::DataType dtype, phi::InferMetaFn infer_meta,
         std::vector<size_t> lists, Arguments meta_arguments, Arguments arguments,
         std::vector<Result> results);

  // Runs the kernel, and returns its results: members of lists one after the other, absent results
  // left out. Copies operands before the kernel overwrites them. Throws Error with PHI's reason.
  Tensors operator()(const Operands& operands) const;

 private:
  std::string name_;
  const phi::Kernel* kernel_;
  phi::InferMetaFn infer_meta_;
  std::vector<bool> is_list_;
  Arguments meta_arguments_, arguments_;
  std::vector<Result> results_;
};

}  // namespace native
