// Compiled functions, bounded and least recently used first out, shared by every engine of the process.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace paddle_ngraph {

class NgraphFunction;

// What a compiled function is good for: one graph, and the dtype, rank and dimensions of every
// input, written one after the other with the rank before the dimensions, so that no two
// signatures read the same. Inputs read by value (shapes, axes) add their contents.
struct Signature {
  uint64_t graph = 0;
  std::vector<int64_t> words;

  bool operator==(const Signature& other) const {
    return graph == other.graph && words == other.words;
  }
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

  // The function of this signature, made the most recently used; nullptr when there is none.
  std::shared_ptr<NgraphFunction> find(const Signature& signature);

  // Keeps `function`, and drops the least recently used ones beyond the capacity. When another
  // thread was first, its function is kept and returned.
  std::shared_ptr<NgraphFunction> insert(const Signature& signature,
                                         std::shared_ptr<NgraphFunction> function);

  void clear();
  CacheInfo info() const;
  void reset_counters();

 private:
  using Entry = std::pair<Signature, std::shared_ptr<NgraphFunction>>;

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used in front
  std::unordered_map<Signature, std::list<Entry>::iterator, SignatureHash> index_;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace paddle_ngraph
