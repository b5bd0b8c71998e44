// NgraphEngine: the engine of one subgraph. Contains the serialized subgraph, and builds a function
// for each new input signature.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "core/common/fault_injection.h"
#include "core/engine/background_compiler.h"
#include "core/engine/concurrency.h"
#include "core/engine/engine_graph.h"
#include "core/engine/events.h"
#include "core/engine/fallback_policy.h"
#include "core/engine/function_store.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/snapshot.h"
#include "core/engine/thread_sharing.h"
#include "core/engine/verified_run.h"
#include "core/ov/ov_function.h"
#include "core/paddle/weights.h"

namespace paddle {
class CustomOpKernelContext;
}

namespace paddle_ngraph {

class AwaitedBuild;
class CompileJob;

class NgraphEngine : public std::enable_shared_from_this<NgraphEngine> {
 public:
  // Returns the engine of this graph string, shared by equal strings while it is in use, see
  // engines.h. Throws NgraphError if the string is not a graph of this release.
  static std::shared_ptr<NgraphEngine> of(const std::string& graph);

  explicit NgraphEngine(std::string graph);
  NgraphEngine(const NgraphEngine&) = delete;
  NgraphEngine& operator=(const NgraphEngine&) = delete;

  size_t num_inputs() const { return header().num_inputs; }
  size_t num_states() const { return header().num_states; }
  size_t num_outputs() const { return header().num_outputs; }
  const std::string& graph() const { return graph_.text(); }
  uint64_t subgraph_id() const { return graph_.subgraph_id(); }

  // Begins the collection of functions for a model that is being saved: until end_collection(),
  // functions are built again and stored in this folder. `identity`: see disk_cache.h.
  void begin_collection(const std::string& folder, const Digest& identity) {
    functions_.begin_collection(folder, identity);
  }
  // Ends the collection. Returns the error message, or an empty string.
  std::string end_collection() { return functions_.end_collection(); }

  // The settings with which functions are built under the current flags. Throws InvalidInput for an
  // unknown precision.
  Settings settings() const;

  // Throws NgraphError if the graph does not have this many inputs, states included.
  void require_inputs(size_t given) const { graph_.require_inputs(given); }

  // The tensors of the operator call, ordered as in the graph string.
  NgraphIO build_ng_io(paddle::CustomOpKernelContext* context) const;

  // The function for the signature of `io`, from the cache, from disk, or newly built.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io);

  // The function for the signature of `io` from disk, whatever is in the cache; nullptr if there is
  // no usable one. For tests.
  std::shared_ptr<NgraphFunction> load_ng_function(const NgraphIO& io);

  // Builds an ov::Model from the subgraph (in Python, by the bridge) and compiles it, without any
  // cache.
  std::shared_ptr<NgraphFunction> build_ng_function(const NgraphIO& io);

  // Runs the subgraph with the function for the signature of `io`, or with Paddle's own kernels if
  // the function cannot be built or run, or while it is built in the background. Throws the errors
  // of these kernels; with FLAGS_ngraph_strict, and for invalid settings, the errors of the
  // function. A run in FLAGS_ngraph_verify is verified: compared with Paddle's kernels.
  void run(const NgraphIO& io);

 private:
  const GraphHeader& header() const { return graph_.header(); }
  void allocate_spare_outputs(paddle::CustomOpKernelContext* context) const;
  void require_outputs(const paddle::CustomOpKernelContext& context) const;
  struct Lookup {
    // The function to run; nullptr: a build is not worthwhile yet (is_skipped), or takes place in
    // the background.
    std::shared_ptr<NgraphFunction> function;
    bool is_skipped = false;  // whether the run falls back since a build is not worthwhile yet
    // The job to submit after the run; nullptr if nothing is to be built, or if another thread has
    // submitted the job.
    std::shared_ptr<CompileJob> job = nullptr;
  };
  // The progress of one attempt to run a function, which is also set if the attempt throws.
  struct Attempt {
    Step step = Step::kData;  // the step that the attempt began last
    Lookup found;
    std::exception_ptr failure;
    bool is_deniable = false;  // whether the cause of the failure may be other than the data
  };
  // Runs the subgraph as run() does, and returns the reason for the event of the run.
  Reason run(const NgraphIO& io, MissingFunction missing);
  // Runs the subgraph, and records the event.
  Reason run_recorded(const NgraphIO& io, MissingFunction missing);
  // Runs the subgraph, and compares the results of a function with those of Paddle's kernels.
  void run_verified(const NgraphIO& io, MissingFunction missing);
  // Runs the subgraph, and hands copies of its inputs to the profile that is measured.
  void run_profiled(const NgraphIO& io, MissingFunction missing);
  // The reason why the fallback runs after a failed attempt.
  static Reason reason_of(const Attempt& attempt, const NgraphIO& io);
  // Calls run_function(). An exception after which the fallback may run is not thrown, but recorded
  // in `attempt`.
  void try_function(const NgraphIO& io, const Settings& settings, MissingFunction missing,
                    Attempt* attempt);
  // Looks up or builds the function for a run, and runs the function, if there is one. After an
  // error other than a PartialWrite, no output was set and no state written.
  void run_function(const NgraphIO& io, const Settings& settings, MissingFunction missing,
                    Attempt* attempt);
  // Finds or builds the function for a run, with fewer threads if runs of the engine overlap.
  Lookup find_or_build(const NgraphIO& io, const Settings& settings, const Concurrency::Run& run,
                       MissingFunction missing);
  // Finds or builds the function for `settings`. If another thread is building for this graph,
  // finds or builds the one for `settings_if_building` instead, unless that is nullptr.
  Lookup find_or_build(const NgraphIO& io, const Settings& settings,
                       const Settings* settings_if_building, MissingFunction missing);
  // Loads the requested function from disk, or builds it. `since`: an epoch before the key of the
  // request was computed.
  Lookup load_or_build(FunctionStore::Request request, const Epoch& since, MissingFunction missing);
  // Looks up the function for these inputs in the cache; nullptr if there is none.
  std::shared_ptr<NgraphFunction> find(const NgraphIO& io, const Settings& settings);
  std::shared_ptr<CompileJob> create_job(const FunctionStore::Request& request,
                                         const std::shared_ptr<const Snapshot>& snapshot);
  // Builds the requested function, and lets Ctrl-C end the wait for it. Returns nothing if another
  // signal has ended it, and the run falls back.
  std::optional<std::shared_ptr<NgraphFunction>> build_interruptibly(
      const FunctionStore::Request& request, const FunctionStore::FrozenInputs& frozen,
      MissingFunction missing);
  // Runs the fallback without a build; if Paddle cannot run the subgraph, the function is built.
  Reason run_fallback_without_compiling(const NgraphIO& io, const Settings& settings);
  // Runs the fallback while the function is built in the background, by `job` or another thread's.
  // If Paddle cannot run the subgraph, drops the job and waits for the function.
  Reason run_fallback_while_compiling(const NgraphIO& io, std::shared_ptr<CompileJob>* job);

  const EngineGraph graph_;
  FunctionStore functions_;
  BackgroundCompiler background_;
  FallbackPolicy fallback_;
  ThreadSharing sharing_;
  // The last build for which a run has waited, guarded by the mutex of the graph's builds.
  std::weak_ptr<AwaitedBuild> awaited_build_;
  VerifiedRuns verified_runs_;
};

}  // namespace paddle_ngraph
