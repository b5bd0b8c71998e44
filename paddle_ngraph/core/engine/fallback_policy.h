// Fallback policy of an engine: when Paddle's kernels run the subgraph, and for how long.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "core/engine/engine_graph.h"
#include "core/engine/ngraph_function.h"

namespace paddle_ngraph {

// Decides when a graph falls back to Paddle, and runs the fallback; thread-safe.
class FallbackPolicy {
 public:
  explicit FallbackPolicy(const EngineGraph& graph) : graph_(graph) {}

  // Whether the graph is on the denylist, so that all runs fall back.
  bool is_denied() const;

  // Runs the fallback. Throws NgraphError if it is unavailable, and the errors of Paddle's kernels.
  void run(const NgraphIO& io) const;

  // Runs the fallback, and returns whether it succeeded. Throws Paddle's error if states may have
  // been written.
  bool try_run(const NgraphIO& io) const;

  // Runs the fallback after a failure of the engine. If the fallback succeeds, denylists the graph
  // after kMaxFailedRuns overflows or failures of a kernel in a row, and after any other failure if
  // `is_deniable`.
  void run_after_failure(const NgraphIO& io, const std::exception_ptr& failure, bool is_deniable);

  // Records a successful run of the engine: the failures before it are no longer consecutive.
  void note_engine_run() { failed_runs_ = 0; }

 private:
  const EngineGraph& graph_;
  // denylist_version() when the graph was denied; any other value: it is not denied now.
  std::atomic<uint64_t> denied_at_{0};
  // Number of consecutive runs of the engine that failed by an overflow of int32, or by a kernel.
  std::atomic<int> failed_runs_{0};
};

}  // namespace paddle_ngraph
