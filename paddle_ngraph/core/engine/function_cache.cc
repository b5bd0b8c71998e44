#include "core/engine/function_cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/common/caches.h"
#include "core/common/content_hash.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/size_guards.h"
#include "core/ov/trim_memory.h"
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
    "`FLAGS_ngraph_cache_size` functions, `FLAGS_ngraph_cache_mb` MB of constant weights",
    [] { FunctionCache::instance().clear(); },
    [] { return static_cast<size_t>(FunctionCache::instance().info().currsize); });

const CacheDeclaration evicted_for_capacity_declaration(
    "evicted_for_capacity", "graphs whose functions were evicted for the weights of others",
    "hash of graph and digest of weights", "4,096; all are dropped at the bound",
    "clear_cache(), with the functions", "events, which cannot be recomputed");

// Placeholder for the size of a symbol that no word of a signature has given yet. Sizes are never
// negative.
constexpr int64_t kUnknown = -1;

// Maximum number of hashes in `evicted_for_capacity_`, the graphs whose functions with constant
// weights were evicted.
constexpr size_t kMaxEvictedHashes = 4096;

// A cached function that none of this many latest lookups has returned is treated as unused: its
// memory is available to new functions. So of several functions that compete for the capacity of
// the cache, each is rebuilt only after as many lookups.
constexpr int64_t kRecentLookups = 1024;

// A function for one signature is dropped if it was not found while a function with symbolic sizes
// that serves its signature was found this many times. It was compiled before that one, and may be
// faster, but for a signature that is so seldom its memory is worth more.
constexpr int64_t kFoundBetweenCollections = 32;

// After this many changes of sizes, freed memory is returned to the system: for each size, the
// plugin replaces kernels by others of other sizes, which leaves blocks in the middle of the heap.
constexpr int64_t kChangesBetweenTrims = 64;

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
  std::shared_ptr<NgraphFunction> function;
  bool is_trim_due = false;
  {
    Functions::Entries superseded;  // destroyed after the lock is released, as in insert()
    std::lock_guard<std::mutex> lock(mutex_);
    CachedFunction* const found = find_locked(signature);
    if (!is_retry) ++(found == nullptr ? misses_ : hits_);
    ++lookups_;
    if (found == nullptr) return nullptr;
    found->last_lookup = lookups_;
    function = found->function;
    if (found->symbolic) {
      if (++found->num_found % kFoundBetweenCollections == 0)
        superseded = collect_superseded(found);
      is_trim_due = note_signature(found, signature) || !superseded.empty();
    }
  }
  if (is_trim_due) trim_free_memory();
  return function;
}

// Notes the signature for which `symbolic` was found; returns whether memory is to be trimmed.
bool FunctionCache::note_signature(CachedFunction* symbolic, const Signature& signature) {
  const uint64_t hash = SignatureHash()(signature);
  if (std::exchange(symbolic->last_signature, hash) == hash) return false;
  return ++changes_of_size_ % kChangesBetweenTrims == 0;
}

// Removes the functions for one signature that `symbolic` serves too, and that no look-up has found
// since its latest collection.
FunctionCache::Functions::Entries FunctionCache::collect_superseded(CachedFunction* symbolic) {
  const int64_t since = std::exchange(symbolic->last_collection, lookups_);
  return functions_.remove_if([&](const Functions::Entry& entry) {
    return !entry.value.symbolic && entry.value.last_lookup <= since &&
           symbolic->symbolic->fits(entry.key);
  });
}

FunctionCache::CachedFunction* FunctionCache::find_locked(const Signature& signature) {
  if (auto* const found = functions_.find(signature)) return found;
  return functions_.find_if([&](const Functions::Entry& entry) {
    const auto& symbolic = entry.value.symbolic;
    return symbolic && symbolic->fits(signature);
  });
}

std::shared_ptr<NgraphFunction> FunctionCache::insert(const Signature& signature,
                                                      std::shared_ptr<NgraphFunction> function,
                                                      size_t weight_bytes,
                                                      std::optional<SymbolicSignature> symbolic,
                                                      const std::atomic<bool>* is_active) {
  // The evicted functions, destroyed after the lock is released: freeing a compiled function is
  // slow.
  Functions::Entries for_count, for_capacity;
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_active != nullptr && !*is_active) return function;
  if (const auto* const found = find_locked(signature)) return found->function;
  functions_.add(signature, {function, std::move(symbolic), lookups_, 0, lookups_}, weight_bytes);
  evicted_for_capacity_.erase(hash_of_weights(signature));
  for_count = functions_.evict_beyond(static_cast<size_t>(std::max(1, FLAGS_ngraph_cache_size)));
  // The capacity in bytes counts constant weights only: a function without them evicts nothing
  // here.
  if (weight_bytes > 0) for_capacity = functions_.evict_to_bytes(max_bytes());
  for (const auto& evicted : for_capacity) note_evicted_for_capacity(evicted.key);
  is_any_evicted_for_capacity_ = !evicted_for_capacity_.empty();
  evictions_ += static_cast<int64_t>(for_count.size() + for_capacity.size());
  return function;
}

void FunctionCache::note_evicted_for_capacity(const Signature& signature) {
  if (evicted_for_capacity_.size() == kMaxEvictedHashes) evicted_for_capacity_.clear();
  evicted_for_capacity_.insert(hash_of_weights(signature));
}

bool FunctionCache::was_evicted_for_capacity(const Signature& signature) const {
  if (!is_any_evicted_for_capacity_ || !signature.weights.has_value()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return evicted_for_capacity_.count(hash_of_weights(signature)) > 0;
}

bool FunctionCache::has_capacity_for(size_t weight_bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto in_use = [&](size_t sum, const Functions::Entry& entry) {
    return lookups_ - entry.value.last_lookup < kRecentLookups ? sum + entry.bytes : sum;
  };
  const auto& entries = functions_.entries();
  return std::accumulate(entries.begin(), entries.end(), weight_bytes, in_use) <= max_bytes();
}

void FunctionCache::drop(uint64_t graph, const Digest& weights) {
  drop_if(
      [&](const auto& entry) { return entry.key.graph == graph && entry.key.weights == weights; });
}

void FunctionCache::drop(uint64_t graph) {
  drop_if([&](const auto& entry) { return entry.key.graph == graph; });
}

void FunctionCache::drop(const NgraphFunction& function) {
  drop_if([&](const auto& entry) { return entry.value.function.get() == &function; });
}

void FunctionCache::drop_symbolic(uint64_t graph) {
  drop_if([&](const auto& entry) { return entry.key.graph == graph && entry.value.symbolic; });
}

void FunctionCache::drop_if(const std::function<bool(const Functions::Entry&)>& is_unwanted) {
  Functions::Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  dropped = functions_.remove_if(is_unwanted);
}

void FunctionCache::clear() {
  Functions::Entries dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  evicted_for_capacity_.clear();
  is_any_evicted_for_capacity_ = false;
  dropped = functions_.clear();
}

CacheInfo FunctionCache::info() const {
  std::lock_guard<std::mutex> lock(mutex_);
  CacheInfo info;
  info.hits = hits_;
  info.misses = misses_;
  info.evictions = evictions_;
  info.maxsize = std::max(1, FLAGS_ngraph_cache_size);
  info.currsize = static_cast<int64_t>(functions_.size());
  return info;
}

void FunctionCache::reset_counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  hits_ = misses_ = evictions_ = 0;
}

}  // namespace paddle_ngraph
