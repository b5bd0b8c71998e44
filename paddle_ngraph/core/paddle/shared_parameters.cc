#include "core/paddle/shared_parameters.h"

#include <cstring>
#include <memory>
#include <utility>

#include "core/paddle/tensors.h"

namespace paddle_ngraph {

// An allocation that uses the memory of another allocation, and keeps that one alive.
class SharedParameters::SharedAllocation final : public phi::Allocation {
 public:
  explicit SharedAllocation(std::shared_ptr<phi::Allocation> source)
      : Allocation(source->ptr(), source->size(), source->place()), source_(std::move(source)) {}

  const phi::Allocation* source() const { return source_.get(); }

 private:
  std::shared_ptr<phi::Allocation> source_;
};

void SharedParameters::share(const std::string& name, phi::DenseTensor* tensor) {
  if (tensor->Holder() == nullptr || tensor->numel() == 0) return;
  phi::DenseTensor first;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    first = by_name_.emplace(name, *tensor).first->second;
  }
  const bool is_same = first.dtype() == tensor->dtype() && first.dims() == tensor->dims() &&
                       first.meta().offset == tensor->meta().offset &&
                       std::memcmp(memory(first), memory(*tensor), num_bytes(first)) == 0;
  if (is_same)
    *tensor = phi::DenseTensor(std::make_shared<SharedAllocation>(first.Holder()), tensor->meta());
}

const phi::Allocation* SharedParameters::source_of(const phi::Allocation& memory) {
  const auto* shared = dynamic_cast<const SharedAllocation*>(&memory);
  return shared == nullptr ? nullptr : shared->source();
}

}  // namespace paddle_ngraph
