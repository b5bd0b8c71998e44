#include "core/engine/snapshot.h"

#include "core/paddle/tensors.h"

namespace paddle_ngraph {

Snapshot::Snapshot(const std::vector<phi::DenseTensor*>& inputs, const std::vector<size_t>& values,
                   const std::vector<size_t>& weights)
    : tensors_(inputs.size()) {
  for (const auto* copied : {&values, &weights}) {
    for (size_t input : *copied) tensors_[input] = copy_of(*inputs[input]);
  }
  inputs_.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (tensors_[i].Holder() == nullptr) tensors_[i].set_meta(inputs[i]->meta());
    inputs_.push_back(&tensors_[i]);
  }
}

size_t Snapshot::num_bytes() const {
  size_t total = 0;
  for (const auto& tensor : tensors_) {
    if (tensor.Holder() != nullptr) total += paddle_ngraph::num_bytes(tensor);
  }
  return total;
}

}  // namespace paddle_ngraph
