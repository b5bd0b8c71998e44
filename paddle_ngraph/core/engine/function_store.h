// Function store of an engine: finds, loads, builds and caches the functions of one graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/engine/disk_cache.h"
#include "core/engine/engine_graph.h"
#include "core/engine/events.h"
#include "core/engine/function_cache.h"
#include "core/engine/function_collection.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/shape_statistics.h"
#include "core/engine/snapshot.h"
#include "core/engine/weights_in_place.h"
#include "core/paddle/weights.h"

namespace paddle_ngraph {

// Finds, loads, builds and caches the functions of one graph. Thread-safe, except that only one
// thread at a time may build.
class FunctionStore {
 public:
  using Inputs = EngineGraph::Inputs;
  using FunctionPtr = std::shared_ptr<NgraphFunction>;

  explicit FunctionStore(const EngineGraph& graph);
  // Drops the functions of the graph from the function cache.
  ~FunctionStore();
  FunctionStore(const FunctionStore&) = delete;
  FunctionStore& operator=(const FunctionStore&) = delete;

  const EngineGraph& graph() const { return graph_; }
  const WeightWatch& weights() const { return weights_; }

  // A request for the function of a run: the variables and settings of the run, and the key under
  // which the function is cached.
  struct Request {
    const NgraphIO& io;
    const Settings& settings;
    Signature key;

    bool has_constant_weights() const { return key.weights.has_value(); }
  };
  Request request(const NgraphIO& io, const Settings& settings);

  // Drops the functions whose constant weights have changed since the functions were built.
  void drop_outdated();

  // The cached function. If functions with its weights were evicted for lack of capacity and there
  // is none now, the weights become inputs and the key loses its fingerprint: otherwise several
  // functions would evict each other and be built again and again.
  FunctionPtr find(Request* request);

  // A function that another thread has cached since find(); counts neither as hit nor as miss.
  FunctionPtr find_again(const Request& request) { return find_valid(request, true); }

  // Whether the function may run on the inputs of `io`, given that the weights have the fingerprint
  // in its key. False only if the function reads weights in place that are at other addresses, or
  // that may have been written.
  bool is_valid_for(const NgraphFunction& function, const NgraphIO& io) const;

  // Whether a run without a function falls back to Paddle instead of building one, since the graph
  // runs with too many shapes for a function each.
  bool should_skip(const Request& request);

  // Treats the shape of these inputs as frequent, after Paddle has failed to run them: the next run
  // of the shape builds the function.
  void mark_frequent(const NgraphIO& io, const Settings& settings);

  // Number of bytes of the weights that would become constants of the requested function; 0 if the
  // key has no fingerprint.
  size_t num_constant_bytes(const Request& request) const;

  // The variables of a run whose weights a build reads in place: with the epoch since which nothing
  // may write these weights, and a pin of their memory. The build may end after the run.
  // Thread-safe.
  class Variables {
   public:
    Variables(const Inputs& inputs, const Epoch& since, const WeightWatch& weights)
        : inputs_(&inputs),
          since_(since),
          watch_(weights),
          weights_(weights, inputs),
          tensors_(weights.tensors(inputs)),
          pin_(std::make_unique<MemoryPin>(tensors_)) {}

    // Whether nothing can have written the weights; after the run, until unpin().
    bool are_untouched() const;
    // Ends the run: the variables may be destroyed from now on.
    void end_run();
    void unpin();
    // The addresses of the weights.
    const WeightsInPlace& weights() const { return weights_; }

   private:
    bool are_untouched_now() const;  // the caller holds the mutex

    mutable std::mutex mutex_;
    const Inputs* inputs_;        // guarded by the mutex; nullptr: the run is over
    bool were_untouched_ = true;  // at the end of the run, or later; guarded by the mutex
    const Epoch since_;
    const WeightWatch& watch_;
    const WeightsInPlace weights_;
    const std::vector<const phi::DenseTensor*> tensors_;
    std::unique_ptr<MemoryPin> pin_;  // guarded by the mutex
  };

  // The inputs of a build, which no thread can change undetected: copies, and weights in pinned
  // memory.
  struct FrozenInputs {
    std::shared_ptr<const Snapshot> snapshot;
    // The variables whose weights the snapshot refers to; nullptr if the snapshot has copies of
    // them.
    std::shared_ptr<Variables> variables;
    bool key_has_changed = false;  // an input was written since the request
  };

  // Whether the requested function may read its weights in place. Nothing may have written the
  // weights since this epoch.
  bool may_use_weights_in_place(const Request& request, const Epoch& since) const;

  // Freezes the inputs, and sets the key to that of the frozen inputs. `in_place`: see
  // may_use_weights_in_place(); nullptr: weights are copied. Returns nothing if weights may have
  // been written in place.
  std::optional<FrozenInputs> freeze(Request* request, const Epoch* in_place) const;

  // The function stored on disk; nullptr if there is none.
  FunctionPtr load(const Request& request, const FrozenInputs& frozen);

  // Builds a function and caches it. `in_place`: the variables whose weights the snapshot refers
  // to, if it has no copies; their memory is unpinned when the function is built. If they may have
  // been written during the build, nullptr is returned and nothing cached. `is_active`: see
  // FunctionCache::insert(). `reason`: of the event that records the build.
  FunctionPtr build_and_cache(const Signature& key, const Snapshot& snapshot,
                              const Settings& settings, const std::atomic<bool>* is_active,
                              Reason reason, Variables* in_place = nullptr);

  // Builds a function for these inputs, and neither reads nor fills the function cache or the disk
  // cache.
  FunctionPtr build_uncached(const NgraphIO& io, const Settings& settings);

  // After the failure of a run: drops the functions of the graph.
  void drop();

  // After the failure of a function with symbolic sizes: builds none any more.
  void disable_symbolic_sizes();

  // See NgraphEngine.
  void begin_collection(const std::string& folder, const Digest& identity);
  std::string end_collection() { return collection_.end(); }
  bool is_collecting() const { return collection_.is_active(); }

 private:
  // The cached function, if valid for the inputs. If not, the function is dropped, and new
  // functions of this graph copy their weights.
  FunctionPtr find_valid(const Request& request, bool is_retry);
  FunctionPtr add_to_cache(const Signature& key, const Snapshot& snapshot, BuiltFunction built,
                           const std::atomic<bool>* is_active = nullptr,
                           const Variables* in_place = nullptr);
  // `reason`: of the event that records the build.
  BuiltFunction build(const Snapshot& snapshot, bool constant_weights, const Settings& settings,
                      Reason reason) const;
  FunctionPtr wrap(BuiltFunction built);
  Snapshot snapshot(const Inputs& inputs, bool constant_weights, bool in_place = false) const;
  std::optional<DiskKey> disk_key(const Signature& key, const Settings& settings) const;
  std::shared_ptr<SpareTensors> spare_tensors();

  const EngineGraph& graph_;
  WeightWatch weights_;
  ShapeStatistics shapes_;
  FunctionCollection collection_;
  std::atomic<uint64_t> copied_weights_version_{0};  // see find_valid()
  // a function with symbolic sizes has failed: none is built any more
  std::atomic<bool> symbolic_sizes_disabled_{false};
  // The recycled tensors, shared by the functions of the graph, and destroyed with the last of
  // them.
  std::mutex spare_tensors_mutex_;
  std::weak_ptr<SpareTensors> spare_tensors_;
};

}  // namespace paddle_ngraph
