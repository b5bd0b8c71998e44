#include "core/engine/snapshot.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/common/fault_injection.h"
#include "core/common/memory_pool.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// Allocates outside the memory pool, so that the memory returns to the system: no run needs a block
// of this size again.
class WeightCopy final : public phi::Allocation {
 public:
  explicit WeightCopy(size_t bytes) : Allocation(of_system(bytes), bytes, phi::CPUPlace()) {}
  ~WeightCopy() override { std::free(ptr_); }
  WeightCopy(const WeightCopy&) = delete;
  WeightCopy& operator=(const WeightCopy&) = delete;

 private:
  static void* of_system(size_t bytes) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) throw std::bad_alloc();
    return data;
  }
};

phi::DenseTensor copy_of_weight(const phi::DenseTensor& tensor) {
  const size_t bytes = num_bytes(tensor);
  if (bytes < MemoryPool::kMinPooledBytes) return copy_of(tensor);
  inject_fault(Step::kAllocate);
  phi::DenseTensor copy(std::make_shared<WeightCopy>(bytes),
                        {tensor.dtype(), tensor.dims(), tensor.layout()});
  std::memcpy(copy.data(), tensor.data(), bytes);
  return copy;
}

// Returns a tensor that uses the memory of `tensor`, without a reference to the allocation; an
// empty tensor is copied.
phi::DenseTensor view_of(const phi::DenseTensor& tensor) {
  if (tensor.numel() == 0) return copy_of(tensor);
  auto memory = std::make_shared<phi::Allocation>(const_cast<void*>(tensor.data()),
                                                  num_bytes(tensor), phi::CPUPlace());
  return {memory, {tensor.dtype(), tensor.dims(), tensor.layout()}};
}

}  // namespace

Snapshot::Snapshot(const std::vector<phi::DenseTensor*>& inputs, const std::vector<size_t>& values,
                   const std::vector<size_t>& weights, bool in_place)
    : tensors_(inputs.size()) {
  const auto count = [&](size_t input) { num_bytes_ += paddle_ngraph::num_bytes(*inputs[input]); };
  for (size_t input : values) {
    tensors_[input] = copy_of(*inputs[input]);
    count(input);
  }
  for (size_t input : weights) {
    phi::DenseTensor& tensor = tensors_[input];
    tensor = in_place ? view_of(*inputs[input]) : copy_of_weight(*inputs[input]);
    if (in_place || tensor.numel() == 0) continue;
    count(input);
    copies_.push_back({tensor.data(), paddle_ngraph::num_bytes(tensor), tensor.Holder()});
  }
  inputs_.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (tensors_[i].Holder() == nullptr) tensors_[i].set_meta(inputs[i]->meta());
    inputs_.push_back(&tensors_[i]);
  }
}

}  // namespace paddle_ngraph
