// What the build of a function, or the function itself, reads of inputs that others may write.
#pragma once

#include <cstddef>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// The shapes and dtypes of the inputs of a run, and the contents of some of them. These are copied,
// for other threads may write to the variables, or free them, but a function must be made of
// exactly what its key says; weights may be left where they are by who can tell that they stay as
// they are.
class Snapshot {
 public:
  // `values`: the inputs of which the contents are copied. `weights`: those that become constants,
  // of which they are copied unless these are `in_place`.
  Snapshot(const std::vector<phi::DenseTensor*>& inputs, const std::vector<size_t>& values,
           const std::vector<size_t>& weights, bool in_place = false);
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::vector<phi::DenseTensor*>& inputs() const { return inputs_; }

  // How many bytes were copied.
  size_t num_bytes() const { return num_bytes_; }

  // The copies of weights: a function keeps what it has not packed.
  const std::vector<OwnedMemory>& copies() const { return copies_; }

 private:
  std::vector<phi::DenseTensor> tensors_;
  std::vector<phi::DenseTensor*> inputs_;
  std::vector<OwnedMemory> copies_;
  size_t num_bytes_ = 0;
};

}  // namespace paddle_ngraph
