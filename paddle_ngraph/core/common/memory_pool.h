// Memory for outputs, states, random numbers and buffers of the engine and the packed layers.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "paddle/phi/core/allocator.h"

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

// Keeps large freed blocks for the next run, which needs the same ones again: the system clears the
// pages of new blocks first. Holds FLAGS_ngraph_memory_mb at most; drops the least recently freed
// blocks first. Thread-safe.
class MemoryPool {
 public:
  // Smaller blocks are left to Paddle's allocator: the C library keeps them.
  static constexpr size_t kMinPooledBytes = size_t{128} << 10;

  static MemoryPool& instance();

  // Memory that returns to the pool when nothing holds it any more.
  std::shared_ptr<phi::Allocation> allocate(size_t bytes);

  // Returns every block to the system.
  void clear();

  // The size of the unused blocks.
  size_t idle_bytes() const;

  // Whether memory belongs to the pool.
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
  Blocks idle_;  // freed last in front
  std::multimap<size_t, Blocks::iterator> by_size_;
  size_t idle_bytes_ = 0;
};

}  // namespace paddle_ngraph
