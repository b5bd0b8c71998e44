// NgraphFunction: the compiled function of one signature, executed on Paddle's own memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/error.h"
#include "core/engine/weights_in_place.h"
#include "core/ov/optimizer_updates.h"
#include "core/ov/ov_function.h"
#include "core/paddle/random.h"

namespace paddle_ngraph {

// The variables of one run. `inputs` contains the read-only inputs, then the states; state i is
// read from `inputs[inputs.size() - num_states + i]`, and its new value is written to that tensor
// and to `state_outputs[i]`, the operator's output of the state.
struct NgraphIO {
  std::vector<phi::DenseTensor*> inputs;
  size_t num_states = 0;
  std::vector<phi::DenseTensor*> outputs;
  std::vector<phi::DenseTensor*> state_outputs;
  std::deque<phi::DenseTensor> row_major_copies;  // row-major copies of inputs in another layout

  // Adds an input of the run. If it is not row-major, a state is converted in place, another input
  // is copied.
  void append_input(phi::DenseTensor* tensor, bool is_state);
};

// Memory recycled between runs. A run computes new states next to the present ones, unless an
// optimizer update writes them in place, and then exchanges the buffers: the next run uses the old
// memory. The memory of random inputs, of operands of optimizer updates, and of outputs that are no
// longer used is recycled too.
class SpareTensors {
 public:
  // Returns a tensor that was given back for this slot, has this type and is not in use, or a new
  // one.
  phi::DenseTensor take(size_t slot, const ResultType& type);
  // Gives a tensor back to its slot, for reuse by a later run. Memory that Paddle did not allocate
  // is not retained.
  void give(size_t slot, phi::DenseTensor tensor);

 private:
  // The tensors given back, the latest one first. Two are retained: in a chain of equal operators,
  // one operator reads the output of the other.
  using Slot = std::array<phi::DenseTensor, 2>;

  std::mutex mutex_;
  std::vector<Slot> tensors_;
};

// Range check of the integer indices in one input. A run with an index out of range is rejected.
// On the CPU, the operator CheckRange (core/ov/check_range_op.h) checks instead.
struct RangeCheck {
  size_t input;
  // Bounds low[i] <= index < high[i]: one pair for each index along the last axis of the input, or
  // a single pair for all indices.
  std::vector<int64_t> low, high;
  std::vector<int64_t> ignored;  // values that the check accepts although they are out of range
  std::string message;
  ErrorCode code;
  int64_t op_id;  // id of the operator that the error names, see NgraphError
};

struct BuiltFunction;

// The compiled function of one signature, or of all that satisfy its guards. Thread-safe.
class NgraphFunction {
 public:
  // An output of at most this many bytes is retained for the next run: for a small output,
  // allocation and the change of the function's output address take longer than the computation.
  static constexpr size_t kMaxRecycledOutputBytes = 65536;

  // `num_outputs` and `num_states`: the numbers of outputs and states of the graph.
  NgraphFunction(BuiltFunction built, size_t num_outputs, size_t num_states,
                 std::shared_ptr<SpareTensors> spare_tensors);

  // Executes the function. Nothing is written before every check has passed and the computation has
  // succeeded. Throws InvalidInput, or the exception of the CPU plugin; a failure after writing has
  // begun is thrown as a PartialWrite.
  void run(const NgraphIO& io) const;

  // Whether the function is valid for more than one signature.
  bool is_symbolic() const { return is_symbolic_; }

  bool has_little_to_do() const { return function_->settings().streams == 0; }

  // Whether some dimension is dynamic (unknown until a run). After an exception in a run, the
  // shapes that remain in the plugin are unknown.
  bool has_dynamic_dims() const { return function_->settings().deferred_errors_id != 0; }

  // Whether a later run may pack weights, for itself and all runs after it.
  bool may_pack() const { return function_->may_pack() || has_dynamic_dims(); }

  // Has the function read weights in place; called before other threads can see the function.
  void use_weights_in_place(std::unique_ptr<WeightsInPlace> weights) {
    weights_in_place_ = std::move(weights);
  }
  // The weights that the function reads in place; nullptr if it has copies of its weights, or none.
  WeightsInPlace* weights_in_place() const { return weights_in_place_.get(); }

 private:
  // Runs the compiled model. Returns its results: outputs, then new values of states, then operands
  // of optimizer updates, except the operands that are in `pinned`.
  std::vector<phi::DenseTensor> execute(const NgraphIO& io,
                                        const std::vector<phi::DenseTensor*>& parameters,
                                        PinnedValues* pinned) const;
  std::vector<phi::DenseTensor> execute_dynamic(
      const std::vector<phi::DenseTensor*>& parameters) const;
  std::vector<phi::DenseTensor> sample_random_inputs(const NgraphIO& io) const;
  // Prepares the optimizer updates; `results` are the results of the function, `pinned` the values
  // in its memory.
  Updater::Run prepare_updates(const NgraphIO& io, const std::vector<phi::DenseTensor>& results,
                               const PinnedValues& pinned) const;
  // Sets the operator's output variables to the results, and writes the new values of the states.
  // `pinned` is released after the optimizer updates.
  void publish(const NgraphIO& io, const Updater::Run* updates,
               std::vector<phi::DenseTensor> results, PinnedValues pinned) const;
  // Writes the new values of the states, of which some are empty (already written by an optimizer
  // update): exchanges buffers where the memory has no other owner or reader, else copies.
  void publish_states(const NgraphIO& io, std::vector<phi::DenseTensor> fresh) const;

  std::unique_ptr<OvFunction> function_;
  std::vector<size_t> parameter_inputs_;
  std::vector<RandomSample> samples_;
  std::vector<RangeCheck> checks_;
  bool is_symbolic_;
  std::unique_ptr<Updater> updater_;  // does the optimizer updates; nullptr without any
  // For each state, the index of the result that is its new value, see optimizer_updates.h.
  std::vector<size_t> state_result_indices_;
  // For each result that is no output, the index of its memory in spare_tensors_.
  std::vector<size_t> spare_slots_;
  // The tensors that the functions of the graph recycle for states, random inputs and gradients.
  std::shared_ptr<SpareTensors> spare_tensors_;
  mutable SpareTensors spare_outputs_;
  std::unique_ptr<WeightsInPlace> weights_in_place_;
};

}  // namespace paddle_ngraph
