// NgraphEngine: what runs one interval. Holds the serialized subgraph, and builds a function for
// each input signature it meets.
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

// How many threads a function with such settings has.
int threads_of(const Settings& settings);

// As FLAGS_ngraph_precision has it.
const char* name_of(Precision precision);

class CompileJob;

class NgraphEngine : public std::enable_shared_from_this<NgraphEngine> {
 public:
  // The engine of this graph string: the same one for equal strings while somebody holds it, see
  // engines.h. Throws NgraphError when the string is not a graph of this release.
  static std::shared_ptr<NgraphEngine> of(const std::string& graph);

  explicit NgraphEngine(std::string graph);
  ~NgraphEngine();
  NgraphEngine(const NgraphEngine&) = delete;
  NgraphEngine& operator=(const NgraphEngine&) = delete;

  size_t num_inputs() const { return header_.num_inputs; }
  size_t num_states() const { return header_.num_states; }
  size_t num_outputs() const { return header_.num_outputs; }
  const std::string& graph() const { return graph_; }

  // From now on functions are built again, and stored in this folder, until the end. For a model
  // that is being saved.
  void begin_collection(const std::string& folder);
  // What went wrong, if anything.
  std::string end_collection();

  // What functions are built for now, according to the flags. Throws InvalidInput for an unknown
  // precision.
  Settings settings() const;

  // Throws NgraphError if the graph does not have this many inputs, states included.
  void require_inputs(size_t given) const;

  // The variables that go in and out, in the order of the graph string.
  NgraphIO build_ng_io(paddle::CustomOpKernelContext* context) const;

  // The function for the signature of `io`, from the cache, from disk, or newly built.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io) const;

  // Builds an ov::Model from the subgraph (in Python, by the bridge) and compiles it. No cache is
  // used.
  std::shared_ptr<NgraphFunction> build_ng_function(const NgraphIO& io) const;

  // Runs the interval: by the function for the signature of `io`, and by Paddle's own kernels where
  // that cannot be built or run, or while it is built in the background. Throws what these kernels
  // throw; with FLAGS_ngraph_strict, and for invalid settings, what the function throws.
  void run(const NgraphIO& io) const;

 private:
  void allocate_spare_outputs(paddle::CustomOpKernelContext* context) const;
  void require_outputs(const paddle::CustomOpKernelContext& context) const;
  // `job`: where a run puts the order of a function that is to be built in the background;
  // nullptr where it waits for every function that it lacks.
  using JobPtr = std::shared_ptr<CompileJob>;
  void run(const NgraphIO& io, JobPtr* job) const;
  // Runs the function; `step` shows how far it got. If it throws, nothing was published. Returns
  // whether there was one.
  bool run_function(const NgraphIO& io, const Settings& settings, JobPtr* job, Step* step) const;
  // nullptr if the function is built in the background. Where `settings_if_building` is given, and
  // another thread is building for this graph, the function for those settings.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io, const Settings& settings,
                                                  const Settings* settings_if_building,
                                                  JobPtr* job) const;
  Settings shared_settings(const Settings& settings, const Concurrency::Run& run) const;
  // The function for one of several runs that may go on.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io, const Settings& settings,
                                                  const Concurrency::Run& run, JobPtr* job) const;
  std::shared_ptr<NgraphFunction> find_function(const NgraphIO& io, const Settings& settings) const;
  // Whether it may run on these inputs, of which the weights have its fingerprint.
  bool is_valid_for(const NgraphFunction& function, const NgraphIO& io) const;
  // What the cache has for this key, if it serves. If not, it is dropped, and from now on functions
  // of this graph have weights of their own.
  std::shared_ptr<NgraphFunction> find_valid(const Signature& key, const NgraphIO& io,
                                             bool is_retry = false) const;
  // The same for a run. Where functions with its weights were dropped for lack of room, and there
  // is none now, the weights are inputs, as the key says from then on: else each of several
  // functions would be built again after the others.
  std::shared_ptr<NgraphFunction> find_within_capacity(Signature* key, const NgraphIO& io) const;
  // Throws InvalidInput if the input has another dtype than the program declares.
  void require_dtype(const phi::DenseTensor& tensor, size_t input) const;
  // Throws InvalidInput unless the input, which is empty, is a list of axes or sizes.
  void require_list(size_t input) const;
  void run_fallback(const NgraphIO& io) const;
  // Runs natively, if Paddle can; what it raises goes on where it may have written states.
  bool try_fallback(const NgraphIO& io) const;
  // A run that is left to Paddle; if Paddle cannot run the interval, its function is built.
  void run_fallback_without_compiling(const NgraphIO& io, const Settings& settings) const;
  // Runs natively while the function is built in the background. Drops the order, and waits for the
  // function, if Paddle cannot run the interval.
  void run_fallback_while_compiling(const NgraphIO& io, JobPtr* job) const;
  // Runs natively what the engine failed at; from now on always, if that succeeds and there is a
  // reason.
  void run_fallback_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                  const std::string& reason) const;
  using Inputs = std::vector<phi::DenseTensor*>;
  Signature signature(const Inputs& inputs, const Settings& settings) const;
  Snapshot snapshot(const Inputs& inputs, bool constant_weights, bool in_place = false) const;
  // The function that was stored for this key; nullptr if there is none.
  std::shared_ptr<NgraphFunction> load(const Signature& key, const Snapshot& snapshot,
                                       const Settings& settings) const;
  // Whether a run that lacks its function is left to Paddle, as there would be too many functions.
  bool should_skip_compile(const Signature& key, const Settings& settings) const;
  // The variables of a run, untouched since a moment, and their memory.
  struct Variables {
    Variables(const Inputs& inputs, const Epoch& since, const WeightWatch& weights)
        : inputs(inputs), since(since) {
      pin.emplace(weights.tensors(inputs));
    }

    const Inputs& inputs;
    const Epoch since;
    std::optional<MemoryPin> pin;
  };
  // `in_place`: those whose weights the snapshot shows, if it has no copies; their memory is let go
  // when the function is built. Then nullptr is returned, and nothing kept, where they may have
  // been written meanwhile.
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
  // Records that the function for this key cannot be built, nor any other of the graph if it is
  // the graph that is to blame.
  void record_failure(const Signature& key, const std::exception_ptr& failure,
                      bool is_for_all) const;
  // Throws what was recorded for this key, or for all, once.
  void rethrow_failure(const Signature& key) const;
  std::optional<DiskKey> disk_key(const Signature& key, const Settings& settings) const;
  bool is_collecting() const;
  // Stores what was built, if functions are collected, unless it turns out not to be what the key
  // says. Returns whether they are.
  bool collect(const std::optional<DiskKey>& key, const BuiltFunction& built,
               const std::function<bool()>& is_valid) const;
  std::shared_ptr<NgraphFunction> wrap(BuiltFunction built) const;
  std::shared_ptr<SpareTensors> spare_tensors() const;

  const std::string graph_;
  uint64_t id_ = 0;
  const GraphHeader header_;
  std::vector<size_t> copied_inputs_;  // inputs that are read by value, and only read
  mutable WeightWatch weights_;
  bool has_frozen_weights_ = false;  // with weights that it keeps, and that nothing trains
  mutable Concurrency concurrency_;
  mutable std::atomic<bool> shares_threads_{false};           // among runs that overlap
  mutable std::atomic<bool> dynamic_shapes_disabled_{false};  // a function with open sizes failed
  mutable std::atomic<uint64_t> denied_at_{0};                // see denylist_version()
  mutable std::atomic<int> overflow_runs_{0};                 // in a row
  mutable std::atomic<uint64_t> copied_weights_version_{0};   // the same: see find_valid()
  mutable std::atomic<const CompileJob*> pending_job_{nullptr};
  mutable std::atomic<int64_t> min_fallback_us_{0};  // that a native run took; 0: none was measured
  mutable std::atomic<int64_t> fallback_runs_{0};    // that were native while functions were built
  // Functions that serve one shape each: how many there have been, and which ones; the first
  // shapes, and how often others had none since the last one. All by their hash.
  struct StaticFunctions {
    uint64_t version = 0;  // see denylist_version()
    size_t count = 0;
    std::unordered_set<uint64_t> built;
    std::set<uint64_t> first_shapes;
    std::unordered_map<uint64_t, size_t> misses;
  };
  // Those since caches were cleared; needs the mutex.
  StaticFunctions& static_functions() const;
  mutable std::mutex static_functions_mutex_;
  mutable StaticFunctions static_functions_;
  struct Failure {
    Signature key;
    std::exception_ptr reason;
    uint64_t version;
    bool is_for_all;  // whatever the key
  };
  mutable std::mutex failures_mutex_;
  mutable std::vector<Failure> failures_;
  struct Collection {
    std::string folder;  // empty: there is none
    std::string failure;
  };
  mutable std::mutex collection_mutex_;
  mutable Collection collection_;
  // Shared by the functions of the graph, and gone with the last of them.
  mutable std::mutex spare_tensors_mutex_;
  mutable std::weak_ptr<SpareTensors> spare_tensors_;
};

}  // namespace paddle_ngraph
