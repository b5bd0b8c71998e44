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
    kSeldomAndNew  // seldom, and no function for it was built in this process; one may be on disk
  };

  // Counts a run that lacks the function for this key, and returns the frequency of its shape.
  Frequency count_miss(const Signature& key);

  // Counts a function that was built or loaded.
  void count_function(const Signature& key);

  // Treats the shape as frequent: its next run gets a function.
  void mark_frequent(const Signature& key);

  // Forgets that the function for this key was built: it was dropped as invalid, not evicted for
  // lack of capacity. Treats its shape as frequent.
  void forget(const Signature& key);

  // Forgets which functions were built: they were dropped as outdated, not evicted for lack of
  // capacity.
  void forget_built();

 private:
  // Counts of runs and functions; shapes and keys are stored as their hashes.
  struct Counts {
    uint64_t version = 0;  // see denylist_version()
    size_t count = 0;      // number of functions built or loaded
    std::unordered_set<uint64_t> built;
    std::set<uint64_t> first_shapes;
    // For each other shape, the number of misses since its last function.
    std::unordered_map<uint64_t, size_t> misses;
  };

  // The counts, reset if the version of the denylist has changed; requires mutex_.
  Counts& counts();

  std::mutex mutex_;
  Counts counts_;
};

}  // namespace paddle_ngraph
