// Kernels of Paddle as the operator KernelCall sees them. Paddle's side of the core implements this
// interface (core/paddle/phi_kernel.h); as in ov_function.h, no standard string or list crosses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/common/element_type.h"

namespace paddle_ngraph {

// A dense tensor in row-major order, in memory of the function.
struct KernelTensor {
  ElementType element = ElementType::f32;
  std::vector<int64_t> shape;  // -1 for a size that depends on data
  void* data = nullptr;
};

// A kernel with the arguments of one operator. Thread-safe.
//
// Tensors of dtypes that the CPU plugin lacks, or computes with fewer bits, cross as bytes: as u8
// with the bytes of an element along an additional last axis. Integers of 64 bits may also cross as
// int32, in which the plugin computes them: the kernel reads and writes copies in 64 bits.
class PaddleKernel {
 public:
  virtual ~PaddleKernel() = default;

  // The types and shapes of the results for inputs of these types and shapes, without data. Throws
  // NgraphError with the reason of Paddle's shape inference.
  virtual std::vector<KernelTensor> infer(const std::vector<KernelTensor>& inputs) const = 0;

  // Runs the kernel on the memory of `inputs` and `results`. `allocate(i, shape)` returns the
  // memory of result i, whose size infer() has not known. Throws NgraphError with the kernel's
  // reason.
  using Allocate = std::function<void*(size_t index, const std::vector<int64_t>& shape)>;
  virtual void run(const std::vector<KernelTensor>& inputs,
                   const std::vector<KernelTensor>& results, const Allocate& allocate) const = 0;
};

// Creates a kernel from its description (conversion/kernel_calls.py). Throws NgraphError.
using MakePaddleKernel = std::unique_ptr<PaddleKernel> (*)(const char* description);

// Called once, by Paddle's side: without it, in a process without Paddle, there are no kernels.
void set_paddle_kernels(MakePaddleKernel make);

}  // namespace paddle_ngraph
