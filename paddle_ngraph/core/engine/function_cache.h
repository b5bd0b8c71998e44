// LRU cache of compiled functions, shared by all engines of the process, limited in count and in
// bytes of constant weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/common/blake3.h"
#include "core/common/fork_safe_mutex.h"

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
  std::vector<int> symbols;     // index of the symbolic size of each word, or kFixed
  std::vector<int64_t> guards;  // conditions on the symbolic sizes: see size_guards.h

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
  // none. A repeated search for one run (`is_retry`) counts neither as hit nor as miss.
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

  // Whether `weight_bytes` bytes of weights fit without the eviction of weights in use.
  bool has_capacity_for(size_t weight_bytes) const;

  // Drops the functions of a graph whose constant weights have this digest.
  void drop(uint64_t graph, const Digest& weights);

  // Drops the functions of a graph.
  void drop(uint64_t graph);

  // Drops one function.
  void drop(const NgraphFunction& function);

  // Drops the functions of a graph that have symbolic sizes.
  void drop_symbolic(uint64_t graph);

  void clear();
  CacheInfo info() const;
  void reset_counters();

 private:
  struct Entry {
    Signature signature;
    std::shared_ptr<NgraphFunction> function;
    size_t weight_bytes;  // bytes of the weights that the function retains as constants
    std::optional<SymbolicSignature> symbolic;
    int64_t last_lookup;  // value of lookups_ when the function was last found
  };
  using Entries = std::list<Entry>;

  Entries::iterator find_entry(const Signature& signature);
  void detach_if(const std::function<bool(const Entry&)>& unwanted);
  void detach(Entries::iterator entry, Entries* dropped);
  // Moves the least recently used entry, or the least recently used one with weights, to `dropped`,
  // but never the first entry. Returns whether there was one.
  bool evict(bool has_weights, Entries* dropped);

  mutable ForkSafeMutex mutex_;
  Entries entries_;  // the most recently used one first
  std::unordered_map<Signature, Entries::iterator, SignatureHash> index_;
  size_t weight_bytes_ = 0;
  std::unordered_set<uint64_t> evicted_for_capacity_;  // hashes of graphs with weights
  std::atomic<bool> is_any_evicted_for_capacity_{false};
  int64_t lookups_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace paddle_ngraph
