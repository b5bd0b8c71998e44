// What the build of a function, or the function itself, reads of inputs that others may write.
#pragma once

#include <cstddef>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// The shapes and dtypes of the inputs of a run, and copies of the contents of some of them: other
// threads may write to the variables, or free them, but a function must be made of exactly what its
// key says.
class Snapshot {
 public:
  // `values`, `weights`: the inputs of which the contents are copied.
  Snapshot(const std::vector<phi::DenseTensor*>& inputs, const std::vector<size_t>& values,
           const std::vector<size_t>& weights);
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::vector<phi::DenseTensor*>& inputs() const { return inputs_; }

  // How many bytes were copied.
  size_t num_bytes() const;

 private:
  std::vector<phi::DenseTensor> tensors_;
  std::vector<phi::DenseTensor*> inputs_;
};

}  // namespace paddle_ngraph
