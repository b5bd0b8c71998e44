// NgraphEngine: the engine of one subgraph. Contains the serialized subgraph, and builds a function
// for each new input signature.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/common/fault_injection.h"
#include "core/engine/build_failures.h"
#include "core/engine/concurrency.h"
#include "core/engine/disk_cache.h"
#include "core/engine/engine_graph.h"
#include "core/engine/engine_settings.h"
#include "core/engine/engine_stats.h"
#include "core/engine/function_cache.h"
#include "core/engine/function_collection.h"
#include "core/engine/graph_header.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/shape_statistics.h"
#include "core/engine/snapshot.h"
#include "core/ov/ov_function.h"
#include "core/paddle/weights.h"

namespace paddle {
class CustomOpKernelContext;
}

namespace paddle_ngraph {

class CompileJob;

class NgraphEngine : public std::enable_shared_from_this<NgraphEngine> {
 public:
  // Returns the engine of this graph string, shared by equal strings while it is in use, see
  // engines.h. Throws NgraphError if the string is not a graph of this release.
  static std::shared_ptr<NgraphEngine> of(const std::string& graph);

  explicit NgraphEngine(std::string graph);
  ~NgraphEngine();
  NgraphEngine(const NgraphEngine&) = delete;
  NgraphEngine& operator=(const NgraphEngine&) = delete;

  size_t num_inputs() const { return header().num_inputs; }
  size_t num_states() const { return header().num_states; }
  size_t num_outputs() const { return header().num_outputs; }
  const std::string& graph() const { return graph_.text(); }

  // Begins the collection of functions for a model that is being saved: until end_collection(),
  // functions are built again and stored in this folder.
  void begin_collection(const std::string& folder);
  // Ends the collection. Returns the error message, or an empty string.
  std::string end_collection() { return collection_.end(); }

  // Build settings according to the present flags. Throws InvalidInput for an unknown precision.
  Settings settings() const;

  // Throws NgraphError if the graph does not have this many inputs, states included.
  void require_inputs(size_t given) const { graph_.require_inputs(given); }

  // The input and output variables, in the order of the graph string.
  NgraphIO build_ng_io(paddle::CustomOpKernelContext* context) const;

  // The function for the signature of `io`, from the cache, from disk, or newly built.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io) const;

  // Builds an ov::Model from the subgraph (in Python, by the bridge) and compiles it, without any
  // cache.
  std::shared_ptr<NgraphFunction> build_ng_function(const NgraphIO& io) const;

  // Runs the subgraph with the function for the signature of `io`, or with Paddle's own kernels if
  // the function cannot be built or run, or while it is built in the background. Throws the errors
  // of these kernels; with FLAGS_ngraph_strict, and for invalid settings, the errors of the
  // function.
  void run(const NgraphIO& io) const;

 private:
  const GraphHeader& header() const { return graph_.header(); }
  void allocate_spare_outputs(paddle::CustomOpKernelContext* context) const;
  void require_outputs(const paddle::CustomOpKernelContext& context) const;
  // A run that lacks its function waits for the build, or may fall back while the function is built
  // in the background.
  enum class MissingFunction { kWait, kMayFallBack };
  struct Lookup {
    // nullptr: not worth a build yet, or to be built in the background.
    std::shared_ptr<NgraphFunction> function;
    bool is_skipped = false;  // not worth a build yet
    // The job to submit after the run; nullptr if there is none, or another thread has submitted
    // it.
    std::shared_ptr<CompileJob> job = nullptr;
  };
  // How far a run has come, also if it has thrown.
  struct Progress {
    Step step = Step::kData;  // the last step begun
    Lookup found;
  };
  void run(const NgraphIO& io, MissingFunction missing) const;
  // Runs the function, if there is one. If it throws, nothing was published.
  void run_function(const NgraphIO& io, const Settings& settings, MissingFunction missing,
                    Progress* progress) const;
  // If `settings_if_building` is given and another thread builds for this graph, finds the function
  // for those settings.
  Lookup find_or_build(const NgraphIO& io, const Settings& settings,
                       const Settings* settings_if_building, MissingFunction missing) const;
  Settings shared_settings(const Settings& settings, const Concurrency::Run& run) const;
  // Finds the function for one of several runs that may be concurrent.
  Lookup find_or_build(const NgraphIO& io, const Settings& settings, const Concurrency::Run& run,
                       MissingFunction missing) const;
  std::shared_ptr<NgraphFunction> find_function(const NgraphIO& io, const Settings& settings) const;
  // Whether the function may run on these inputs, whose weights have its fingerprint.
  bool is_valid_for(const NgraphFunction& function, const NgraphIO& io) const;
  // The cached function for this key, if valid for the inputs. If not, the function is dropped, and
  // new functions of this graph copy their weights.
  std::shared_ptr<NgraphFunction> find_valid(const Signature& key, const NgraphIO& io,
                                             bool is_retry = false) const;
  // find_valid() for a run. If functions with its weights were evicted for lack of capacity and
  // there is none now, the weights become inputs and `key` loses its fingerprint: otherwise several
  // functions would evict each other and be built again and again.
  std::shared_ptr<NgraphFunction> find_within_capacity(Signature* key, const NgraphIO& io) const;
  void run_fallback(const NgraphIO& io) const;
  // Runs the fallback, and returns whether it succeeded. Throws Paddle's error if states may have
  // been written.
  bool try_fallback(const NgraphIO& io) const;
  // Runs the fallback without a build; if Paddle cannot run the subgraph, the function is built.
  void run_fallback_without_compiling(const NgraphIO& io, const Settings& settings) const;
  // Runs the fallback while the function is built in the background, by `job` or another thread's.
  // Returns the job. If Paddle cannot run the subgraph, drops the job, waits for the function, and
  // returns nullptr.
  std::shared_ptr<CompileJob> run_fallback_while_compiling(const NgraphIO& io,
                                                           std::shared_ptr<CompileJob> job) const;
  // Runs the fallback after a failure of the engine. If the fallback succeeds, denylists the graph
  // after kMaxOverflowRuns overflows in a row, and after any other failure if `is_deniable`.
  void run_fallback_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                  bool is_deniable) const;
  using Inputs = std::vector<phi::DenseTensor*>;
  Snapshot snapshot(const Inputs& inputs, bool constant_weights, bool in_place = false) const;
  // The function stored on disk for this key; nullptr if there is none.
  std::shared_ptr<NgraphFunction> load(const Signature& key, const Snapshot& snapshot,
                                       const Settings& settings) const;
  // Whether a run that lacks its function falls back to Paddle, since there would be too many
  // functions.
  bool should_skip_compile(const Signature& key, const Settings& settings) const;
  // The variables of a run, not written since an epoch, and a pin of their memory.
  struct Variables {
    Variables(const Inputs& inputs, const Epoch& since, const WeightWatch& weights)
        : inputs(inputs), since(since) {
      pin.emplace(weights.tensors(inputs));
    }

    const Inputs& inputs;
    const Epoch since;
    std::optional<MemoryPin> pin;
  };
  // `in_place`: the variables whose weights the snapshot refers to, if it has no copies; their
  // memory is unpinned when the function is built. If they may have been written during the build,
  // nullptr is returned and nothing cached.
  std::shared_ptr<NgraphFunction> build_and_cache(const Signature& key, const Snapshot& snapshot,
                                                  const Settings& settings,
                                                  const std::atomic<bool>* is_active,
                                                  Variables* in_place = nullptr) const;
  std::shared_ptr<NgraphFunction> add_to_cache(const Signature& key, const Snapshot& snapshot,
                                               BuiltFunction built,
                                               const std::atomic<bool>* is_active = nullptr,
                                               const Variables* in_place = nullptr) const;
  BuiltFunction build(const Snapshot& snapshot, bool constant_weights,
                      const Settings& settings) const;

  friend CompileJob;
  std::optional<DiskKey> disk_key(const Signature& key, const Settings& settings) const;
  std::shared_ptr<NgraphFunction> wrap(BuiltFunction built) const;
  std::shared_ptr<SpareTensors> spare_tensors() const;

  const EngineGraph graph_;
  mutable WeightWatch weights_;
  mutable Concurrency concurrency_;
  mutable std::atomic<bool> shares_threads_{false};           // among runs that overlap
  mutable std::atomic<bool> dynamic_shapes_disabled_{false};  // a symbolic function failed
  mutable std::atomic<uint64_t> denied_at_{0};                // see denylist_version()
  mutable std::atomic<int> overflow_runs_{0};                 // in a row
  mutable std::atomic<uint64_t> copied_weights_version_{0};   // see find_valid()
  mutable std::atomic<const CompileJob*> pending_job_{nullptr};
  mutable std::atomic<int64_t> min_fallback_us_{0};  // of runs by Paddle; 0: not measured
  mutable std::atomic<int64_t> fallback_runs_{0};    // by Paddle during builds
  mutable ShapeStatistics shapes_;
  mutable BuildFailures failures_;
  mutable FunctionCollection collection_;
  // Shared by the functions of the graph, and destroyed with the last of them.
  mutable std::mutex spare_tensors_mutex_;
  mutable std::weak_ptr<SpareTensors> spare_tensors_;
};

}  // namespace paddle_ngraph
