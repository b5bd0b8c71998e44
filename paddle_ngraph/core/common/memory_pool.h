// Memory pool for outputs, states, random numbers and buffers of the engine and the packed layers.
#pragma once

#include <atomic>
#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "paddle/phi/core/allocator.h"

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

// Retains large freed blocks for the next run, which needs blocks of the same sizes: the system
// would clear the pages of new blocks first. Retains at most FLAGS_ngraph_memory_mb; frees the
// least recently returned blocks first. Thread-safe.
class MemoryPool {
 public:
  // Smaller blocks come from Paddle's allocator; the C library caches them.
  static constexpr size_t kMinPooledBytes = size_t{128} << 10;

  static MemoryPool& instance();

  // Allocates memory that returns to the pool when its last reference is released.
  std::shared_ptr<phi::Allocation> allocate(size_t bytes);

  // Returns every unused block of the pool to the system.
  void clear();

  // Total size of the unused blocks, in bytes.
  size_t idle_bytes() const;

  // Total size of the allocated blocks that have not returned, in bytes.
  size_t live_bytes() const { return live_bytes_; }

  // Whether an allocation is from this pool.
  static bool owns(const phi::Allocation& memory);

 private:
  class Memory;
  struct Block {
    void* data;
    size_t bytes;
  };
  using Blocks = std::list<Block>;

  void* take(size_t bytes);
  void give(void* data, size_t bytes);

  mutable ForkSafeMutex mutex_;
  Blocks idle_;  // unused blocks, the most recently freed one first
  std::multimap<size_t, Blocks::iterator> by_size_;
  size_t idle_bytes_ = 0;
  std::atomic<size_t> live_bytes_{0};
};

}  // namespace paddle_ngraph
