// LRU cache of compiled functions, shared by all engines of the process, limited in count and in
// bytes of constant weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "core/common/blake3.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/lru_cache.h"

namespace paddle_ngraph {

class NgraphFunction;

// Cache key of a compiled function: one graph, and the dtype, rank and dimensions of every input,
// in sequence, with the rank before the dimensions, so that the encoding is unambiguous. Inputs
// read by value (shapes, axes) add their contents, one word per element, and weights retained as
// constants add the digest of their contents.
struct Signature {
  uint64_t graph = 0;
  std::optional<Digest> weights;
  std::vector<int64_t> words;

  bool operator==(const Signature& other) const {
    return graph == other.graph && weights == other.weights && words == other.words;
  }
};

// Set of signatures for which one function with symbolic sizes is valid: sizes of dimensions, or
// integer elements of inputs that are read by value.
struct SymbolicSignature {
  Signature example;
  // For each word of the signature, the index of its symbolic size, or kFixed.
  std::vector<int> symbols;
  // Conditions on the symbolic sizes, encoded as size_guards.h describes.
  std::vector<int64_t> guards;

  static constexpr int kFixed = -1;

  // Whether the fixed words are equal, all words of one symbolic size are equal, and the guards
  // hold.
  bool fits(const Signature& signature) const;
};

struct SignatureHash {
  size_t operator()(const Signature& signature) const;
};

struct CacheInfo {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t evictions = 0;
  int64_t maxsize = 0;
  int64_t currsize = 0;
};

class FunctionCache {
 public:
  static FunctionCache& instance();

  // The function for this signature, which becomes the most recently used one; nullptr if there is
  // none. A repeated search for one run (`is_retry`) counts neither as hit nor as miss. Drops
  // functions for one signature that have not been found for a while, if one with symbolic sizes,
  // which has, serves that signature too. Returns freed memory to the system now and then, if sizes
  // keep changing.
  std::shared_ptr<NgraphFunction> find(const Signature& signature, bool is_retry = false);

  // Caches `function` for this signature or, if it has symbolic sizes, for all signatures that fit
  // `symbolic`. Evicts the least recently used functions beyond the capacity in count and, if
  // `function` has constant weights, the least recently used functions with constant weights beyond
  // the capacity in bytes. If another thread has already cached a function, that function stays and
  // is returned. Nothing is cached if `*is_active` is false, even if a thread that is about to
  // clear the cache has just reset it.
  std::shared_ptr<NgraphFunction> insert(const Signature& signature,
                                         std::shared_ptr<NgraphFunction> function,
                                         size_t weight_bytes = 0,
                                         std::optional<SymbolicSignature> symbolic = std::nullopt,
                                         const std::atomic<bool>* is_active = nullptr);

  // Whether a function of this graph with these constant weights was evicted for lack of capacity,
  // and none was cached since.
  bool was_evicted_for_capacity(const Signature& signature) const;

  // Whether a function with `weight_bytes` of weights fits without evicting weights in recent use.
  bool has_capacity_for(size_t weight_bytes) const;

  // Drops the functions of a graph whose constant weights have this digest.
  void drop(uint64_t graph, const Digest& weights);

  // Drops all functions of the graph with this id from the cache.
  void drop(uint64_t graph);

  // Drops this function from the cache.
  void drop(const NgraphFunction& function);

  // Drops the functions of a graph that have symbolic sizes.
  void drop_symbolic(uint64_t graph);

  void clear();
  CacheInfo info() const;
  void reset_counters();

 private:
  struct CachedFunction {
    std::shared_ptr<NgraphFunction> function;
    std::optional<SymbolicSignature> symbolic;
    int64_t last_lookup;  // value of lookups_ at the last look-up that found the function
    // For a function with symbolic sizes: the number of look-ups that found it, and the value of
    // lookups_ when it was cached or, later, at the last collect_superseded().
    int64_t num_found;
    int64_t last_collection;
    // For a function with symbolic sizes: the hash of the signature that was looked up last.
    uint64_t last_signature = 0;
  };
  // The bytes are those of the weights that a function retains as constants.
  using Functions = LruMap<Signature, CachedFunction, SignatureHash>;

  CachedFunction* find_locked(const Signature& signature);
  Functions::Entries collect_superseded(CachedFunction* symbolic);
  bool note_signature(CachedFunction* symbolic, const Signature& signature);
  void note_evicted_for_capacity(const Signature& signature);
  void drop_if(const std::function<bool(const Functions::Entry&)>& is_unwanted);

  mutable ForkSafeMutex mutex_;
  Functions functions_;
  std::unordered_set<uint64_t> evicted_for_capacity_;  // hashes of graphs with weights
  std::atomic<bool> is_any_evicted_for_capacity_{false};
  int64_t lookups_ = 0;
  int64_t changes_of_size_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace paddle_ngraph
