#include "core/engine/function_cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "core/common/caches.h"
#include "core/common/content_hash.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/size_guards.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

uint64_t first_word(const std::optional<Digest>& digest) {
  uint64_t word = 0;
  if (digest) std::memcpy(&word, digest->bytes.data(), sizeof(word));
  return word;
}

}  // namespace

size_t SignatureHash::operator()(const Signature& signature) const {
  const auto& words = signature.words;
  const uint64_t seed = signature.graph ^ first_word(signature.weights);
  return content_hash(words.data(), words.size() * sizeof(int64_t), seed);
}

namespace {

const CacheDeclaration functions_declaration(
    "functions", "compiled functions",
    "graph, digest of constant weights, and dtypes, dimensions and integers of the inputs; a "
    "function with symbolic sizes serves every signature that satisfies its guards",
    "`FLAGS_ngraph_cache_size` functions, `FLAGS_ngraph_cache_mb` MB of constant weights; LRU",
    [] { FunctionCache::instance().clear(); },
    [] { return static_cast<size_t>(FunctionCache::instance().info().currsize); });

const CacheDeclaration evicted_for_capacity_declaration(
    "evicted_for_capacity", "graphs whose functions were evicted for the weights of others",
    "hash of graph and digest of weights", "4,096; all are dropped at the bound",
    "clear_cache(), with the functions");

// Placeholder for the size of a symbol that no word of a signature has given yet. Sizes are never
// negative.
constexpr int64_t kUnknown = -1;

// Maximum number of hashes in `evicted_for_capacity_`, the graphs whose functions with constant
// weights were evicted.
constexpr size_t kMaxEvictedHashes = 4096;

// A function that was not found by this many consecutive lookups is treated as unused: its capacity
// is available, so that each of several functions that compete for it is rebuilt only after as many
// lookups.
constexpr int64_t kRecentLookups = 1024;

uint64_t hash_of_weights(const Signature& signature) {
  const std::array<uint64_t, 2> words{signature.graph, first_word(signature.weights)};
  return content_hash(words.data(), sizeof(words), 0);
}

size_t max_bytes() { return static_cast<size_t>(std::max(0, FLAGS_ngraph_cache_mb)) << 20; }

}  // namespace

bool SymbolicSignature::fits(const Signature& signature) const {
  if (signature.graph != example.graph || signature.weights != example.weights ||
      signature.words.size() != example.words.size()) {
    return false;
  }
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < symbols.size(); ++i) {
    const int64_t word = signature.words[i];
    if (symbols[i] == kFixed) {
      if (word != example.words[i]) return false;
      continue;
    }
    if (word < 0) return false;
    const auto symbol = static_cast<size_t>(symbols[i]);
    if (symbol >= sizes.size()) sizes.resize(symbol + 1, kUnknown);
    if (sizes[symbol] == kUnknown) sizes[symbol] = word;
    if (word != sizes[symbol]) return false;
  }
  return guards_hold(guards, sizes);
}

FunctionCache& FunctionCache::instance() {
  // The cache is never destroyed: freeing some hundred functions one by one at the end of a process
  // takes seconds, and Paddle's and OpenVINO's own globals may be gone by then.
  static FunctionCache* const cache = std::make_unique<FunctionCache>().release();
  return *cache;
}

std::shared_ptr<NgraphFunction> FunctionCache::find(const Signature& signature, bool is_retry) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = find_entry(signature);
  if (!is_retry) ++(found == entries_.end() ? misses_ : hits_);
  ++lookups_;
  if (found == entries_.end()) return nullptr;
  found->last_lookup = lookups_;
  entries_.splice(entries_.begin(), entries_, found);
  return found->function;
}

FunctionCache::Entries::iterator FunctionCache::find_entry(const Signature& signature) {
  const auto found = index_.find(signature);
  if (found != index_.end()) return found->second;
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.symbolic && entry.symbolic->fits(signature);
  });
}

std::shared_ptr<NgraphFunction> FunctionCache::insert(const Signature& signature,
                                                      std::shared_ptr<NgraphFunction> function,
                                                      size_t weight_bytes,
                                                      std::optional<SymbolicSignature> symbolic,
                                                      const std::atomic<bool>* is_active) {
  // The evicted functions, destroyed after the lock is released: freeing a compiled function is
  // slow.
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_active != nullptr && !*is_active) return function;
  const auto found = find_entry(signature);
  if (found != entries_.end()) return found->function;
  entries_.push_front(
      {signature, std::move(function), weight_bytes, std::move(symbolic), lookups_});
  index_[signature] = entries_.begin();
  weight_bytes_ += weight_bytes;
  evicted_for_capacity_.erase(hash_of_weights(signature));
  const auto capacity = static_cast<size_t>(std::max(1, FLAGS_ngraph_cache_size));
  while (entries_.size() > capacity && evict(false, &dropped)) continue;
  // The capacity in bytes counts constant weights only: a function without them evicts nothing
  // here.
  while (weight_bytes > 0 && weight_bytes_ > max_bytes() && evict(true, &dropped)) continue;
  is_any_evicted_for_capacity_ = !evicted_for_capacity_.empty();
  return entries_.front().function;
}

bool FunctionCache::evict(bool has_weights, Entries* dropped) {
  auto last = std::prev(entries_.end());
  while (has_weights && last != entries_.begin() && last->weight_bytes == 0) --last;
  if (last == entries_.begin()) return false;
  if (has_weights) {
    if (evicted_for_capacity_.size() == kMaxEvictedHashes) evicted_for_capacity_.clear();
    evicted_for_capacity_.insert(hash_of_weights(last->signature));
  }
  detach(last, dropped);
  ++evictions_;
  return true;
}

void FunctionCache::detach(Entries::iterator entry, Entries* dropped) {
  index_.erase(entry->signature);
  weight_bytes_ -= entry->weight_bytes;
  dropped->splice(dropped->begin(), entries_, entry);
}

bool FunctionCache::was_evicted_for_capacity(const Signature& signature) const {
  if (!is_any_evicted_for_capacity_ || !signature.weights.has_value()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return evicted_for_capacity_.count(hash_of_weights(signature)) > 0;
}

bool FunctionCache::has_capacity_for(size_t weight_bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto in_use = [&](size_t sum, const Entry& entry) {
    return lookups_ - entry.last_lookup < kRecentLookups ? sum + entry.weight_bytes : sum;
  };
  const size_t bytes = std::accumulate(entries_.begin(), entries_.end(), weight_bytes, in_use);
  return bytes <= max_bytes();
}

void FunctionCache::drop(uint64_t graph, const Digest& weights) {
  detach_if([&](const Entry& entry) {
    return entry.signature.graph == graph && entry.signature.weights == weights;
  });
}

void FunctionCache::drop(uint64_t graph) {
  detach_if([&](const Entry& entry) { return entry.signature.graph == graph; });
}

void FunctionCache::drop(const NgraphFunction& function) {
  detach_if([&](const Entry& entry) { return entry.function.get() == &function; });
}

void FunctionCache::drop_symbolic(uint64_t graph) {
  detach_if([&](const Entry& entry) { return entry.signature.graph == graph && entry.symbolic; });
}

void FunctionCache::detach_if(const std::function<bool(const Entry&)>& unwanted) {
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (unwanted(*entry)) detach(entry, &dropped);
    entry = next;
  }
}

void FunctionCache::clear() {
  Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  index_.clear();
  weight_bytes_ = 0;
  evicted_for_capacity_.clear();
  is_any_evicted_for_capacity_ = false;
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
