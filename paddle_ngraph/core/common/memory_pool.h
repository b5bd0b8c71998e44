// Memory of what the engine and the packed layers make: outputs, states, random numbers, buffers.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "paddle/phi/core/allocator.h"

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

// Large blocks that were freed, for the next run, which needs the same ones again: blocks from the
// system come with pages that it clears first. Holds FLAGS_ngraph_memory_mb at most, least recently
// freed first out. Safe to use from several threads.
class MemoryPool {
 public:
  // Smaller blocks are left to Paddle's allocator: the C library keeps them.
  static constexpr size_t kLeastBytes = size_t{128} << 10;

  static MemoryPool& instance();

  // Memory that goes back to the pool when nobody holds it any more.
  std::shared_ptr<phi::Allocation> allocate(size_t bytes);

  // Gives every block back to the system.
  void clear();

  // What the blocks take that nobody uses.
  size_t idle_bytes() const;

  // Whether memory is of the pool.
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
