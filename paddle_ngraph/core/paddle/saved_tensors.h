// Tensors of a scope as they are now, to be put there again.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

class SavedTensors {
 public:
  // Shares them; or, if tensors of the user are given, only what these hold, since it is what the
  // user makes of it, and copies the rest. Throws NgraphError for a tensor that is not plain.
  SavedTensors(const std::vector<const phi::DenseTensor*>& tensors,
               const std::optional<pybind11::list>& user_tensors);

  // Gives these tensors, in the same order, what was kept: of copies others, for whoever is given
  // them may write over them.
  void restore_to(const std::vector<phi::DenseTensor*>& tensors) const;

 private:
  struct Entry {
    phi::DenseTensor tensor;
    bool is_shared;
  };
  std::vector<Entry> saved_;
};

}  // namespace paddle_ngraph
