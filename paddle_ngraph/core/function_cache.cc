#include "function_cache.h"

#include <algorithm>

#include "flags.h"
#include "ngraph_engine.h"

namespace paddle_ngraph {

size_t SignatureHash::operator()(const Signature& signature) const {
  // FNV-1a over 64-bit words.
  uint64_t hash = 1469598103934665603ULL ^ signature.graph;
  for (int64_t word : signature.words) {
    hash ^= static_cast<uint64_t>(word);
    hash *= 1099511628211ULL;
  }
  return static_cast<size_t>(hash);
}

FunctionCache& FunctionCache::instance() {
  // Never destroyed: at the end of a process, to free some hundred functions one by one takes
  // seconds, and Paddle's and OpenVINO's own globals may be gone by then.
  static FunctionCache* const cache = std::make_unique<FunctionCache>().release();
  return *cache;
}

std::shared_ptr<NgraphFunction> FunctionCache::find(const Signature& signature) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = index_.find(signature);
  if (found == index_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

std::shared_ptr<NgraphFunction> FunctionCache::insert(const Signature& signature,
                                                      std::shared_ptr<NgraphFunction> function) {
  // Destroyed after the lock is released: freeing a compiled function takes long.
  std::list<Entry> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = index_.find(signature);
  if (found != index_.end()) return found->second->second;
  entries_.emplace_front(signature, std::move(function));
  index_[signature] = entries_.begin();
  const auto capacity = static_cast<size_t>(std::max(1, FLAGS_ngraph_cache_size));
  while (entries_.size() > capacity) {
    index_.erase(entries_.back().first);
    dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
    ++evictions_;
  }
  return entries_.front().second;
}

void FunctionCache::clear() {
  std::list<Entry> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  index_.clear();
  dropped.swap(entries_);
}

CacheInfo FunctionCache::info() const {
  std::lock_guard<std::mutex> lock(mutex_);
  CacheInfo info;
  info.hits = hits_;
  info.misses = misses_;
  info.evictions = evictions_;
  info.maxsize = std::max(1, FLAGS_ngraph_cache_size);
  info.currsize = static_cast<int64_t>(entries_.size());
  return info;
}

void FunctionCache::reset_counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  hits_ = misses_ = evictions_ = 0;
}

}  // namespace paddle_ngraph
