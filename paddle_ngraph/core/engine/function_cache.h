// Compiled functions, shared by every engine of the process: bounded in number and in the weights
// they keep, with least-recently-used eviction.
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

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

class NgraphFunction;

// What a compiled function is valid for: one graph, and the dtype, rank and dimensions of every
// input, written one after the other with the rank before the dimensions, so that no two signatures
// read the same. Inputs read by value (shapes, axes) add their contents, a word for each number,
// and weights kept as constants their fingerprint.
struct Signature {
  uint64_t graph = 0;
  std::optional<uint64_t> weights;
  std::vector<int64_t> words;

  bool operator==(const Signature& other) const {
    return graph == other.graph && weights == other.weights && words == other.words;
  }
};

// The signatures that one function with open sizes is valid for: dimensions, or whole numbers in
// inputs that are read by value.
struct SymbolicSignature {
  Signature example;
  std::vector<int> symbols;     // for each word: the number of the open size that it is, or kFixed
  std::vector<int64_t> guards;  // on the open sizes: see size_guards.h

  static constexpr int kFixed = -1;

  // Whether the fixed words are equal, those of one open size are equal to each other, and the
  // guards hold.
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

  // The function for this signature, which becomes the most recently used; nullptr if there is
  // none. Looking once more for the same run counts as neither hit nor miss.
  std::shared_ptr<NgraphFunction> find(const Signature& signature, bool is_retry = false);

  // Keeps `function` for this signature or, if it has open shapes, for all that match `symbolic`.
  // Drops the least recently used ones beyond the capacity in number, and for one with weights
  // those with weights beyond the capacity in bytes. If another thread was first, its function is
  // kept and returned. Nothing is kept if `is_active` says so, even if it was set by a thread that
  // is about to clear the cache.
  std::shared_ptr<NgraphFunction> insert(const Signature& signature,
                                         std::shared_ptr<NgraphFunction> function,
                                         size_t weight_bytes = 0,
                                         std::optional<SymbolicSignature> symbolic = std::nullopt,
                                         const std::atomic<bool>* is_active = nullptr);

  // Whether a function of this graph that keeps these weights was dropped for lack of room, and
  // none was kept since.
  bool was_evicted_for_capacity(const Signature& signature) const;

  // Whether so many bytes of weights can be kept without dropping others that are in use.
  bool has_capacity_for(size_t weight_bytes) const;

  // Drops the functions of a graph that keep weights of this fingerprint.
  void drop(uint64_t graph, uint64_t weights);

  // Drops the functions of a graph.
  void drop(uint64_t graph);

  // Drops this one.
  void drop(const NgraphFunction& function);

  // Drops the functions of a graph with open shapes.
  void drop_symbolic(uint64_t graph);

  void clear();
  CacheInfo info() const;
  void reset_counters();

 private:
  struct Entry {
    Signature signature;
    std::shared_ptr<NgraphFunction> function;
    size_t weight_bytes;  // of weights that it keeps as constants
    std::optional<SymbolicSignature> symbolic;
    int64_t last_lookup;  // the number of the search that found it
  };
  using Entries = std::list<Entry>;

  Entries::iterator find_entry(const Signature& signature);
  void detach_if(const std::function<bool(const Entry&)>& unwanted);
  void detach(Entries::iterator entry, Entries* dropped);
  // Moves out the least recently used entry but the first, or of those with weights. Returns
  // whether there was one.
  bool evict(bool has_weights, Entries* dropped);

  mutable ForkSafeMutex mutex_;
  Entries entries_;  // most recently used in front
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
