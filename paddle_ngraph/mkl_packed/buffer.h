// Buffer: a large uninitialized array of floats, from the memory pool.
#pragma once

#include <cstdint>
#include <memory>

#include "core/common/memory_pool.h"

namespace paddle_ngraph::mkl_packed {

// Floats from the memory pool: the first write to a new page takes longer than the computation on
// it.
class Buffer {
 public:
  explicit Buffer(int64_t count)
      : memory_(MemoryPool::instance().allocate(static_cast<size_t>(count) * sizeof(float))) {}
  float* data() const { return static_cast<float*>(memory_->ptr()); }

 private:
  std::shared_ptr<phi::Allocation> memory_;
};

}  // namespace paddle_ngraph::mkl_packed
