// Large memory, not initialized.
#pragma once

#include <cstdint>
#include <memory>

#include "core/common/memory_pool.h"

namespace paddle_ngraph::mkl_packed {

// Floats of the pool: the first write to a page that is new takes longer than the work on it.
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : memory_(MemoryPool::instance().allocate(static_cast<size_t>(count) * sizeof(float))) {}
  float* data() const { return static_cast<float*>(memory_->ptr()); }

 private:
  std::shared_ptr<phi::Allocation> memory_;
};

}  // namespace paddle_ngraph::mkl_packed
