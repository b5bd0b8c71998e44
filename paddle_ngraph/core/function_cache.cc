#include "function_cache.h"

#include <algorithm>

#include "flags.h"
#include "ngraph_engine.h"

namespace paddle_ngraph {

size_t SignatureHash::operator()(const Signature& signature) const {
  // FNV-1a over 64-bit words.
  uint64_t hash = 1469598103934665603ULL ^ signature.graph ^ signature.weights.value_or(0);
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
  return found->second->function;
}

std::shared_ptr<NgraphFunction> FunctionCache::insert(const Signature& signature,
                                                      std::shared_ptr<NgraphFunction> function,
                                                      size_t weight_bytes) {
  // Destroyed after the lock is released: freeing a compiled function takes long.
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = index_.find(signature);
  if (found != index_.end()) return found->second->function;
  entries_.push_front({signature, std::move(function), weight_bytes});
  index_[signature] = entries_.begin();
  weight_bytes_ += weight_bytes;
  const auto capacity = static_cast<size_t>(std::max(1, FLAGS_ngraph_cache_size));
  const auto bytes = static_cast<size_t>(std::max(0, FLAGS_ngraph_cache_mb)) << 20;
  while (entries_.size() > 1 && (entries_.size() > capacity || weight_bytes_ > bytes)) {
    move_out(std::prev(entries_.end()), &dropped);
    ++evictions_;
  }
  return entries_.front().function;
}

void FunctionCache::move_out(Entries::iterator entry, Entries* dropped) {
  index_.erase(entry->signature);
  weight_bytes_ -= entry->weight_bytes;
  dropped->splice(dropped->begin(), entries_, entry);
}

void FunctionCache::drop(uint64_t graph, uint64_t weights) {
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    const Signature& signature = entry->signature;
    if (signature.graph == graph && signature.weights == weights) move_out(entry, &dropped);
    entry = next;
  }
}

void FunctionCache::clear() {
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  index_.clear();
  weight_bytes_ = 0;
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
