// Snapshot of inputs that other threads may write, for the build of a function or for the function
// itself.
#pragma once

#include <cstddef>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Shapes and dtypes of the inputs of a run, and the contents of some of them. The contents are
// copied, since other threads may write to the variables or free them, but a function must be built
// from exactly the contents in its key; weights may stay in place if the caller can detect writes
// to them.
class Snapshot {
 public:
  // `values`: indices of inputs whose contents are copied. `weights`: indices of inputs that become
  // constants, which are copied too unless `in_place`.
  Snapshot(const std::vector<phi::DenseTensor*>& inputs, const std::vector<size_t>& values,
           const std::vector<size_t>& weights, bool in_place = false);
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::vector<phi::DenseTensor*>& inputs() const { return inputs_; }

  // Size of all copies in the snapshot, in bytes.
  size_t num_bytes() const { return num_bytes_; }

  // Copies of the weights in this snapshot. A function retains those copies that it has not packed.
  const std::vector<OwnedMemory>& copies() const { return copies_; }

 private:
  std::vector<phi::DenseTensor> tensors_;
  std::vector<phi::DenseTensor*> inputs_;
  std::vector<OwnedMemory> copies_;
  size_t num_bytes_ = 0;
};

}  // namespace paddle_ngraph
