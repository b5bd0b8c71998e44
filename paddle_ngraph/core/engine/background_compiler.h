// Background compilation of an engine: its compile job, and the durations of runs that fall back
// during the build.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/engine/build_failures.h"
#include "core/engine/engine_graph.h"

namespace paddle_ngraph {

class CompileJob;

// For a run that finds no function: to wait for the build; to wait until a signal arrives, and to
// fall back then; or to be allowed to fall back while the function is built in the background, and
// to do the former otherwise.
enum class MissingFunction { kWait, kWaitUntilSignal, kMayFallBack };

// Thread-safe. Python has one queue of jobs for all engines, and the thread that builds them
// (partitioning/background_compile.py).
class BackgroundCompiler {
 public:
  explicit BackgroundCompiler(const EngineGraph& graph) : graph_(graph) {}

  // Whether a run without a function may fall back, by FLAGS_ngraph_background_compile. Throws
  // InvalidInput for an unknown value of the flag.
  static MissingFunction missing_function();

  // Returns true if no job of the engine is pending, for kWait after waiting for the jobs.
  bool is_idle(MissingFunction missing) const;

  // Whether a run on these inputs, for which there is no function, should fall back while the
  // function is built in the background. Takes the GIL.
  bool should_compile(const EngineGraph::Inputs& inputs) const;

  // Submits a job, after the run that created it: during the run, Python creates the fallback
  // program of the subgraph. Throws nothing.
  static void submit(const std::shared_ptr<CompileJob>& job);

  // Records the duration of a run that fell back while its function was built in the background.
  void note_fallback_run(int64_t us);

  // Begin and end of the engine's pending job, called by the job itself. An engine has at most one
  // job that is neither built nor cancelled. Neither function takes a lock.
  void begin(const CompileJob& job) { pending_job_ = &job; }
  void end(const CompileJob& job);

  BuildFailures& failures() { return failures_; }

 private:
  const EngineGraph& graph_;
  BuildFailures failures_;
  std::atomic<const CompileJob*> pending_job_{nullptr};
  // Shortest duration of a fallback run in microseconds; 0: not measured.
  std::atomic<int64_t> min_fallback_us_{0};
};

}  // namespace paddle_ngraph
