// Scratch memory that operators need only during one evaluate. The memory is cached for the next
// one, so that a step touches no new pages, and is shared by all operators, which run one at a
// time.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace paddle_ngraph {

class Workspace {
 public:
  // Memory of at least this many bytes, aligned to a cache line, until the end of the scope.
  explicit Workspace(size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(pool().mutex);
      if (!pool().idle.empty()) {
        block_ = std::move(pool().idle.back());
        pool().idle.pop_back();
      }
    }
    if (block_.size < bytes + kAlignment) {
      block_ = {};  // frees the old block before the new one is allocated
      block_.memory.reset(new char[bytes + kAlignment]);
      block_.size = bytes + kAlignment;
    }
  }
  ~Workspace() {
    std::lock_guard<std::mutex> lock(pool().mutex);
    pool().idle.push_back(std::move(block_));
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Frees the blocks of the pool that no operator is using.
  static void clear() {
    std::lock_guard<std::mutex> lock(pool().mutex);
    pool().idle.clear();
  }

  char* data() const {
    void* begin = block_.memory.get();
    size_t space = block_.size;
    return static_cast<char*>(std::align(kAlignment, block_.size - kAlignment, begin, space));
  }

 private:
  static constexpr size_t kAlignment = 64;

  struct Block {
    std::unique_ptr<char[]> memory;
    size_t size = 0;
  };
  struct Pool {
    std::mutex mutex;
    std::vector<Block> idle;
  };
  static Pool& pool() {
    static Pool instance;
    return instance;
  }

  Block block_;
};

// Number of bytes, rounded up so that the next buffer in a workspace is aligned, too.
constexpr size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace paddle_ngraph
