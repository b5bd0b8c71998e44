// Statistics of the shapes that an engine runs with: which are worth a function of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/engine/function_cache.h"

namespace paddle_ngraph {

// The first kMaxStaticShapes shapes of a graph get a function at their first run. Further shapes,
// as in a Paddle loop whose subgraph has another shape in each iteration, must occur once per
// kFunctionsPerMiss functions built so far. Functions with symbolic sizes do not count. A change of
// the denylist version resets the statistics. Thread-safe.
class ShapeStatistics {
 public:
  enum class Frequency {
    kFrequent,
    kSeldom,
    kSeldomAndNew  // a seldom shape for which this process has built no function; disk may have one
  };

  // Counts a run that found no function for this key. Returns how frequent the shape is, to decide
  // whether to build the function.
  Frequency count_miss(const Signature& key);

  // Records that a function was built, or loaded from disk.
  void count_function(const Signature& key);

  // Has the next run of this shape get a function, however seldom the shape is.
  void mark_frequent(const Signature& key);

  // Forgets that the function for this key was built: it was dropped as invalid, not evicted for
  // lack of capacity. Treats its shape as frequent.
  void forget(const Signature& key);

  // Forgets which functions were built: they were dropped as outdated, not evicted for lack of
  // capacity.
  void forget_built();

 private:
  // Counts of misses and functions, with hashes in place of shapes and keys.
  struct Counts {
    uint64_t version = 0;  // denylist_version() at the first of these counts
    size_t count = 0;      // number of functions that were built or loaded
    std::unordered_set<uint64_t> built;
    std::set<uint64_t> first_shapes;
    // For a shape that is not in `first_shapes`, or whose function was evicted: the number of
    // misses since a function for the shape was last built or loaded.
    std::unordered_map<uint64_t, size_t> misses;
  };

  // The counts of misses and functions. Clears them first if denylist_version() has changed since
  // they were begun: operators that failed are then tried again. Requires mutex_.
  Counts& counts();

  std::mutex mutex_;
  Counts counts_;
};

}  // namespace paddle_ngraph
