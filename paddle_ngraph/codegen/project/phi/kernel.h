// Kernels of Paddle (PHI), called as Paddle's executor calls them, without it and without Python.
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

// What an operator reads: for each operand a tensor, or several if it is a list; none where an
// operand is absent.
using Operands = std::vector<Tensors>;

// An attribute that an operand gives.
struct FromOperand {
  size_t number;
};

// What a kernel, or the function that infers its results, is given.
struct Arguments {
  std::vector<size_t> inputs;  // operands, by number
  std::vector<std::variant<phi::Attribute, FromOperand>> attributes;
};

// A result: a tensor, or `size` of them as a list; one that is absent has the size 0.
struct Result {
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t size = 1;
  bool is_list = false;
  size_t overwrites = kNone;  // the operand whose memory it has
};

// A kernel for a CPU. Safe to call from several threads.
class Kernel {
 public:
  // `lists` are the operands that are lists. Throws Error if PHI has no such kernel.
  Kernel(const std::string& name, phi::DataType dtype, phi::InferMetaFn infer_meta,
         std::vector<size_t> lists, Arguments meta_arguments, Arguments arguments,
         std::vector<Result> results);

  // The results, those of lists one by one, without those that are absent. Operands that it
  // overwrites are copied before. Throws Error with PHI's reason.
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
