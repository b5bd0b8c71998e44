#include "core/paddle/kept_tensors.h"

#include <set>

#include "core/common/error.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// The addresses of what tensors of Python hold.
std::set<const void*> addresses_of(const pybind11::list& tensors) {
  std::set<const void*> found;
  for (const auto& object : tensors) {
    const auto& tensor = tensor_of(object.ptr());
    if (tensor.is_dense_tensor() && tensor.initialized()) found.insert(memory(*dense(tensor)));
  }
  return found;
}

}  // namespace

KeptTensors::KeptTensors(const std::vector<const phi::DenseTensor*>& tensors,
                         const std::optional<pybind11::list>& of_user) {
  const auto of_user_at = of_user ? addresses_of(*of_user) : std::set<const void*>();
  for (const auto* tensor : tensors) {
    if (!is_in_order(*tensor)) throw NgraphError("a tensor has no plain layout");
    const bool is_shared = !of_user || of_user_at.count(memory(*tensor)) > 0;
    kept_.push_back({is_shared ? *tensor : copy_of(*tensor), is_shared});
  }
}

void KeptTensors::put_into(const std::vector<phi::DenseTensor*>& tensors) const {
  for (size_t i = 0; i < kept_.size(); ++i) {
    *tensors.at(i) = kept_[i].is_shared ? kept_[i].tensor : copy_of(kept_[i].tensor);
  }
}

}  // namespace paddle_ngraph
