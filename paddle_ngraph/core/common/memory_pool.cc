#include "core/common/memory_pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include <sys/mman.h>

#include "core/common/caches.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration freed_bytes_declaration(
    "freed_bytes", "freed blocks of memory", "number of bytes",
    "`FLAGS_ngraph_memory_mb` MB; the least recently freed is dropped",
    [] { MemoryPool::instance().clear(); }, [] { return MemoryPool::instance().idle_bytes(); },
    "a pool: many blocks have one size, and a block in use is not in the pool");

constexpr size_t kAlignment = 64, kHugePage = size_t{2} << 20;

// Rounds the size of a block up, in steps of an eighth of the next power of two, so that batches of
// almost the same size share blocks.
size_t rounded(size_t bytes) {
  size_t step = kAlignment;
  while (step * 8 < bytes) step *= 2;
  return std::max(kAlignment, (bytes + step - 1) / step * step);
}

// Allocates from the system, large blocks in huge pages where available; nullptr if no memory is
// left.
void* of_system(size_t bytes) {
  const bool is_large = bytes >= kHugePage;
  void* data = nullptr;  // not by std::aligned_alloc, which accepts multiples of the alignment only
  if (posix_memalign(&data, is_large ? kHugePage : kAlignment, bytes) != 0) return nullptr;
  // Huge pages are only a hint: errors are ignored.
  if (is_large) madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

class MemoryPool::Memory final : public phi::Allocation {
 public:
  explicit Memory(size_t bytes) : Allocation(instance().take(bytes), bytes, phi::CPUPlace()) {
    instance().live_bytes_ += bytes;
  }
  ~Memory() override {
    instance().live_bytes_ -= size_;
    instance().give(ptr_, size_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

MemoryPool& MemoryPool::instance() {
  // The pool is never destroyed: tensors may outlive every other global.
  static MemoryPool* const pool = std::make_unique<MemoryPool>().release();
  return *pool;
}

std::shared_ptr<phi::Allocation> MemoryPool::allocate(size_t bytes) {
  return std::make_shared<Memory>(rounded(bytes));
}

bool MemoryPool::owns(const phi::Allocation& memory) {
  return dynamic_cast<const Memory*>(&memory) != nullptr;
}

void* MemoryPool::take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The most recently freed block of this size is the most likely to be in the CPU caches.
    auto found = by_size_.upper_bound(bytes);
    if (found != by_size_.begin() && (--found)->first == bytes) {
      void* const data = found->second->data;
      idle_.erase(found->second);
      by_size_.erase(found);
      idle_bytes_ -= bytes;
      return data;
    }
  }
  void* data = of_system(bytes);
  if (data == nullptr) {
    clear();
    data = of_system(bytes);
  }
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void MemoryPool::give(void* data, size_t bytes) {
  const auto most = static_cast<size_t>(std::max(0, FLAGS_ngraph_memory_mb)) << 20;
  Blocks dropped;  // declared before the lock, so that blocks are freed after its release
  {
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_front({data, bytes});
    by_size_.emplace(bytes, idle_.begin());
    idle_bytes_ += bytes;
    while (idle_bytes_ > most) {
      const auto oldest = std::prev(idle_.end());
      auto entry = by_size_.lower_bound(oldest->bytes);
      while (entry->second != oldest) ++entry;
      by_size_.erase(entry);
      idle_bytes_ -= oldest->bytes;
      dropped.splice(dropped.end(), idle_, oldest);
    }
  }
  for (const auto& block : dropped) std::free(block.data);
}

void MemoryPool::clear() {
  Blocks dropped;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(idle_);
    by_size_.clear();
    idle_bytes_ = 0;
  }
  for (const auto& block : dropped) std::free(block.data);
}

size_t MemoryPool::idle_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return idle_bytes_;
}

}  // namespace paddle_ngraph
