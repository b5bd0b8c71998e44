// NgraphEngine: what runs one interval. Holds the serialized subgraph, builds a function for each
// input signature it meets, and runs it on Paddle's own memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "function_cache.h"
#include "ov/ov_function.h"
#include "paddle/extension.h"
#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// The variables of one run. `inputs` holds what is only read, then the states; a state is read from
// `inputs[num_read + i]` and its new value is written to the same tensor and to `state_outputs[i]`,
// the operator's name for it.
struct NgraphIO {
  std::vector<phi::DenseTensor*> inputs;
  size_t num_states = 0;
  std::vector<phi::DenseTensor*> outputs;
  std::vector<phi::DenseTensor*> state_outputs;
};

// Memory for the next values of the states of one graph. A run computes them beside the present
// ones, then the two change places: what was present becomes the memory of the run after.
class SpareStates {
 public:
  phi::DenseTensor take(size_t state, const ResultType& type);
  void give(size_t state, phi::DenseTensor tensor);

 private:
  std::mutex mutex_;
  std::vector<phi::DenseTensor> tensors_;
};

// The compiled function of one signature. Safe to run from several threads.
class NgraphFunction {
 public:
  // `parameter_inputs[p]` is the input of the interval that feeds parameter p of the model.
  NgraphFunction(std::unique_ptr<OvFunction> function, std::vector<size_t> parameter_inputs,
                 std::shared_ptr<SpareStates> spare_states);

  // Executes the function. Nothing is written before every check has passed and the computation
  // has succeeded. Throws InvalidInput, or what the CPU plugin throws.
  void run(const NgraphIO& io) const;

 private:
  void publish_state(const NgraphIO& io, size_t index, phi::DenseTensor fresh) const;

  std::unique_ptr<OvFunction> function_;
  std::vector<size_t> parameter_inputs_;
  std::shared_ptr<SpareStates> spare_states_;
};

struct EngineStats {
  std::atomic<int64_t> engine_runs{0};
  std::atomic<int64_t> functions_built{0};
  std::atomic<int64_t> functions_reused{0};

  static EngineStats& instance();
  void reset();
};

class NgraphEngine {
 public:
  // The engine of this graph string: one a process for equal strings. Throws NgraphError when the
  // string is not a graph of this release.
  static std::shared_ptr<NgraphEngine> of(const std::string& graph);

  explicit NgraphEngine(std::string graph);

  size_t num_inputs() const { return num_inputs_; }
  size_t num_states() const { return num_states_; }
  size_t num_outputs() const { return num_outputs_; }
  const std::string& graph() const { return graph_; }

  // The variables that go in and out, in the order of the graph string.
  NgraphIO build_ng_io(paddle::CustomOpKernelContext* context) const;

  // The function for the signature of `io`, from the cache or built.
  std::shared_ptr<NgraphFunction> get_ng_function(const NgraphIO& io) const;

  // Describes the subgraph as an ov::Model (in Python, by the bridge) and compiles it.
  std::shared_ptr<NgraphFunction> build_ng_function(const NgraphIO& io) const;

  void run(const NgraphIO& io) const;

 private:
  Signature signature(const NgraphIO& io) const;
  std::shared_ptr<SpareStates> spare_states() const;

  std::string graph_;
  uint64_t id_ = 0;
  size_t num_inputs_ = 0;  // states included
  size_t num_states_ = 0;
  size_t num_outputs_ = 0;
  std::vector<size_t> value_inputs_;  // inputs whose contents shape the function
  // Shared by the functions of the graph, and gone with the last of them.
  mutable std::mutex spare_states_mutex_;
  mutable std::weak_ptr<SpareStates> spare_states_;
};

}  // namespace paddle_ngraph
