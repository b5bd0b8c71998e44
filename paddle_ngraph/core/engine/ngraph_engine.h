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
#include "core/engine/concurrency.h"
#include "core/engine/disk_cache.h"
#include "core/engine/engine_stats.h"
#include "core/engine/function_cache.h"
#include "core/engine/graph_header.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/snapshot.h"
#include "core/ov/ov_function.h"
#include "core/paddle/weights.h"

namespace paddle {
class CustomOpKernelContext;
}

namespace paddle_ngraph {

// Number of threads of a function with these settings.
int threads_of(const Settings& settings);

// Value of FLAGS_ngraph_precision for this precision.
const char* name_of(Precision precision);

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

  size_t num_inputs() const { return header_.num_inputs; }
  size_t num_states() const { return header_.num_states; }
  size_t num_outputs() const { return header_.num_outputs; }
  const std::string& graph() const { return graph_; }

  // Begins the collection of functions for a model that is being saved: until end_collection(),
  // functions are built again and stored in this folder.
  void begin_collection(const std::string& folder);
  // Ends the collection. Returns the error message, or an empty string.
  std::string end_collection();

  // Build settings according to the present flags. Throws InvalidInput for an unknown precision.
  Settings settings() const;

  // Throws NgraphError if the graph does not have this many inputs, states included.
  void require_inputs(size_t given) const;

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
  void allocate_spare_outputs(paddle::CustomOpKernelContext* context) const;
  void require_outputs(const paddle::CustomOpKernelContext& context) const;
  // `job`: receives the job of a function to build in the background; nullptr if the run waits for
  // each function that it lacks.
  using JobPtr = std::shared_ptr<CompileJob>;
  void run(const NgraphIO& io, JobPtr* job) const;
  // Runs the function; `step` is the last step begun. If it throws, nothing was published. Returns
  // whether there was a function.
  bool run_function(const NgraphIO& io, const Settings& settings, JobPtr* job, Step* step) const;
  // Returns nullptr if the function is built in the background. If `settings_if_building` is given
  // and another thread builds for this graph, returns the function for those settings.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io, const Settings& settings,
                                                  const Settings* settings_if_building,
                                                  JobPtr* job) const;
  Settings shared_settings(const Settings& settings, const Concurrency::Run& run) const;
  // The function for one of several runs that may be concurrent.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io, const Settings& settings,
                                                  const Concurrency::Run& run, JobPtr* job) const;
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
  // Throws InvalidInput if the input has another dtype than the program declares.
  void require_dtype(const phi::DenseTensor& tensor, size_t input) const;
  // Throws InvalidInput unless the input, which is empty, is a list of axes or sizes.
  void require_list(size_t input) const;
  void run_fallback(const NgraphIO& io) const;
  // Runs the fallback, and returns whether it succeeded. Throws Paddle's error if states may have
  // been written.
  bool try_fallback(const NgraphIO& io) const;
  // Runs the fallback without a build; if Paddle cannot run the subgraph, the function is built.
  void run_fallback_without_compiling(const NgraphIO& io, const Settings& settings) const;
  // Runs the fallback while the function is built in the background. If Paddle cannot run the
  // subgraph, drops the job and waits for the function.
  void run_fallback_while_compiling(const NgraphIO& io, JobPtr* job) const;
  // Runs the fallback after a failure of the engine. If the fallback succeeds, denylists the graph
  // after kMaxOverflowRuns overflows in a row, and after any other failure if `is_deniable`.
  void run_fallback_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                  bool is_deniable) const;
  using Inputs = std::vector<phi::DenseTensor*>;
  Signature signature(const Inputs& inputs, const Settings& settings) const;
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
  // Records that the function for this key cannot be built, nor any other function of the graph if
  // `is_for_all`.
  void record_failure(const Signature& key, const std::exception_ptr& failure,
                      bool is_for_all) const;
  // Throws the failure recorded for this key or for all keys, once.
  void rethrow_failure(const Signature& key) const;
  std::optional<DiskKey> disk_key(const Signature& key, const Settings& settings) const;
  bool is_collecting() const;
  // Stores a built function, if functions are collected, unless `is_valid` returns false. Returns
  // whether functions are collected.
  bool collect(const std::optional<DiskKey>& key, const BuiltFunction& built,
               const std::function<bool()>& is_valid) const;
  std::shared_ptr<NgraphFunction> wrap(BuiltFunction built) const;
  std::shared_ptr<SpareTensors> spare_tensors() const;

  const std::string graph_;
  uint64_t id_ = 0;
  const GraphHeader header_;
  std::vector<size_t> copied_inputs_;  // read-only inputs that are read by value
  mutable WeightWatch weights_;
  bool has_frozen_weights_ = false;  // has constant weights that are not trained
  mutable Concurrency concurrency_;
  mutable std::atomic<bool> shares_threads_{false};           // among runs that overlap
  mutable std::atomic<bool> dynamic_shapes_disabled_{false};  // a symbolic function failed
  mutable std::atomic<uint64_t> denied_at_{0};                // see denylist_version()
  mutable std::atomic<int> overflow_runs_{0};                 // in a row
  mutable std::atomic<uint64_t> copied_weights_version_{0};   // see find_valid()
  mutable std::atomic<const CompileJob*> pending_job_{nullptr};
  mutable std::atomic<int64_t> min_fallback_us_{0};  // of runs by Paddle; 0: not measured
  mutable std::atomic<int64_t> fallback_runs_{0};    // by Paddle during builds
  // Functions for one shape each: their total count, and those built; the first shapes, and for
  // each other shape the misses since its last function. All by hash.
  struct StaticFunctions {
    uint64_t version = 0;  // see denylist_version()
    size_t count = 0;
    std::unordered_set<uint64_t> built;
    std::set<uint64_t> first_shapes;
    std::unordered_map<uint64_t, size_t> misses;
  };
  // Statistics since the last change of the denylist version; requires static_functions_mutex_.
  StaticFunctions& static_functions() const;
  mutable std::mutex static_functions_mutex_;
  // CACHE static_functions: counts of functions for one shape
  // key: hash of the signature
  // bound: 16 first shapes, 4,096 functions and 4,096 missed shapes for each engine
  // cleared: a change of the denylist, or the end of the engine
  mutable StaticFunctions static_functions_;
  struct Failure {
    Signature key;
    std::exception_ptr reason;
    uint64_t version;
    bool is_for_all;  // for any key
  };
  mutable std::mutex failures_mutex_;
  // CACHE failures: errors of builds in the background, until a run raises them
  // key: signature
  // bound: 16 for each engine; the oldest is dropped
  // cleared: a change of the denylist, or the end of the engine
  mutable std::vector<Failure> failures_;
  struct Collection {
    std::string folder;  // empty: no collection
    std::string failure;
  };
  mutable std::mutex collection_mutex_;
  mutable Collection collection_;
  // Shared by the functions of the graph, and destroyed with the last of them.
  mutable std::mutex spare_tensors_mutex_;
  mutable std::weak_ptr<SpareTensors> spare_tensors_;
};

}  // namespace paddle_ngraph
