// Calls of Paddle's kernels (PHI), as in Paddle's executor, without the executor and Python.
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

// An attribute whose value is that of an operand.
struct FromOperand {
  size_t number;
};

// The arguments of a call of a PHI kernel, or of its InferMeta function.
struct Arguments {
  std::vector<size_t> inputs;  // indices of the operands that the kernel reads
  std::vector<std::variant<phi::Attribute, FromOperand>> attributes;
};

// A result: a tensor, or a list of `size` tensors; an absent result has size 0.
struct Result {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t size = 1;
  bool is_list = false;
  size_t overwrites = kNone;  // the index of the operand whose memory the result uses
};

// A kernel of Paddle for the CPU. Thread-safe.
class Kernel {
 public:
  // `lists` are the operands that are lists. Throws Error if PHI has no such kernel.
  Kernel(const std::string& name, phi::DataType dtype, phi::InferMetaFn infer_meta,
         std::vector<size_t> lists, Arguments meta_arguments, Arguments arguments,
         std::vector<Result> results);

  // Returns the results, with lists flattened, without absent ones. Copies operands before the
  // kernel overwrites them. Throws Error with PHI's reason.
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
