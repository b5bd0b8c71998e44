// Snapshot of tensors of a scope, from which their contents are restored later.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

class SavedTensors {
 public:
  // Shares the memory of the tensors; or, if tensors of the user are given, shares only memory that
  // a user tensor holds, since changes by the user are intended, and copies the rest. Throws
  // NgraphError for a tensor that is not row-major.
  SavedTensors(const std::vector<const phi::DenseTensor*>& tensors,
               const std::optional<pybind11::list>& user_tensors);

  // Restores the snapshot into these tensors, in the order of the constructor. Copies are copied
  // again, because a receiver may overwrite its tensor.
  void restore_to(const std::vector<phi::DenseTensor*>& tensors) const;

 private:
  struct Entry {
    phi::DenseTensor tensor;
    bool is_shared;
  };
  std::vector<Entry> saved_;
};

}  // namespace paddle_ngraph
