#include "core/paddle/saved_tensors.h"

#include <set>

#include "core/common/error.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// The addresses of the memory of Python tensors.
std::set<const void*> addresses_of(const pybind11::list& tensors) {
  std::set<const void*> found;
  for (const auto& object : tensors) {
    const auto& tensor = tensor_of(object.ptr());
    if (tensor.is_dense_tensor() && tensor.initialized()) found.insert(memory(*dense(tensor)));
  }
  return found;
}

}  // namespace

SavedTensors::SavedTensors(const std::vector<const phi::DenseTensor*>& tensors,
                           const std::optional<pybind11::list>& user_tensors) {
  const auto of_user_at = user_tensors ? addresses_of(*user_tensors) : std::set<const void*>();
  for (const auto* tensor : tensors) {
    if (!is_row_major(*tensor)) throw NgraphError("a tensor has no plain layout");
    const bool is_shared = !user_tensors || of_user_at.count(memory(*tensor)) > 0;
    saved_.push_back({is_shared ? *tensor : copy_of(*tensor), is_shared});
  }
}

void SavedTensors::restore_to(const std::vector<phi::DenseTensor*>& tensors) const {
  for (size_t i = 0; i < saved_.size(); ++i) {
    *tensors.at(i) = saved_[i].is_shared ? saved_[i].tensor : copy_of(saved_[i].tensor);
  }
}

}  // namespace paddle_ngraph
