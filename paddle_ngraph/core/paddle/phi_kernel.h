// Kernels of PHI with the arguments of one operator, for calls from inside a function: without
// Python, Paddle's executor, or copies.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/ov/paddle_kernel.h"

namespace paddle_ngraph {

// The kernel with this description, which consists of words:
//   <operator> <kernel> <dtype of the key>
//   <number of operands> (<is a list> <number of tensors>)...
//   <number of tensors> <dtype>...
//   <number of results> (<is a list> <number of tensors> <use>)...
//   <number of tensors in use> (<dtype> <is passed as bytes>)...
//   <arguments of shape inference> <arguments of the kernel>
// where arguments are <number of operands> <index>... <number of attributes> (<type> <value>)...
// A text is <number of bytes>:<bytes>, a list is <number of items> <item>... The use of a result is
// unused, sized, unsized (its number of rows depends on the contents of the inputs), as_first (it
// has the rows of the first operand), open<rank> (of this rank, no size is known before a run), or
// its number of rows, where shape inference knows none.
// Throws NgraphError if the description is malformed, is not the kernel and the arguments that
// Paddle declares for the operator, or names no kernel for the CPU or one that does more than
// compute; and while FLAGS_ngraph_kernel_calls is off, unless the kernel samples in loops. The
// description may come from a file.
std::unique_ptr<PaddleKernel> make_phi_kernel(const char* description);

// Why functions never call a CPU kernel of the operator with this name, whatever its arguments;
// empty if they may.
std::string reason_against_kernel(const std::string& name);

// Operators whose kernels do more than compute dense tensors from operands, and what they do: no
// function calls them. Paddle's declarations do not say it.
std::map<std::string, std::string> impure_operators();

struct CpuKernel {
  std::vector<std::string> operators;  // those that run it
  std::string other_tensors;           // kinds of its tensors that are not dense
};

// All CPU kernels that Paddle has registered, by name.
std::map<std::string, CpuKernel> cpu_kernels();

// The addresses of the tensors that a kernel has read, and of its results, as it has made them.
struct KernelMemory {
  std::string name;
  std::vector<uintptr_t> inputs, results;
};

// Begins or ends to record the memory of calls, for tests. Returns what was recorded before.
std::vector<KernelMemory> record_kernel_memory(bool recording);

// Attributes that are texts, and name a mode. Any other text may name a file or a variable.
std::set<std::string> mode_attributes();

}  // namespace paddle_ngraph
