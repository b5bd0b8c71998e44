// Fallback policy of an engine: when Paddle's kernels run the subgraph, and for how long.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/engine/engine_graph.h"
#include "core/engine/ngraph_function.h"

namespace paddle_ngraph {

// Thread-safe.
class FallbackPolicy {
 public:
  explicit FallbackPolicy(const EngineGraph& graph) : graph_(graph) {}

  // Whether the denylist has an entry for the graph, so that Paddle runs it.
  bool is_denied() const;

  // Runs the fallback. Throws NgraphError if it is unavailable, and the errors of Paddle's kernels.
  void run(const NgraphIO& io) const;

  // Runs the fallback, and returns whether it succeeded. Throws Paddle's error if states may have
  // been written.
  bool try_run(const NgraphIO& io) const;

  // Runs the fallback after a failure of the engine. If the fallback succeeds, denylists the graph
  // after kMaxOverflowRuns overflows in a row, and after any other failure if `is_deniable`.
  void run_after_failure(const NgraphIO& io, const std::exception_ptr& failure, bool is_deniable);

  // Ends a sequence of overflows: the engine has run the function successfully.
  void note_engine_run() { overflow_runs_ = 0; }

 private:
  const EngineGraph& graph_;
  std::atomic<uint64_t> denied_at_{0};  // see denylist_version()
  // Number of runs in a row whose integers overflowed int32 in the engine.
  std::atomic<int> overflow_runs_{0};
};

}  // namespace paddle_ngraph
