// NgraphFunction: the compiled function of one signature, run on Paddle's own memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/engine/weights_in_place.h"
#include "core/ov/optimizer_updates.h"
#include "core/ov/ov_function.h"
#include "core/paddle/random.h"

namespace paddle_ngraph {

// The variables of one run. `inputs` holds what is only read, then the states; a state is read from
// `inputs[num_read + i]` and its new value is written to the same tensor and to `state_outputs[i]`,
// the operator's name for it.
struct NgraphIO {
  std::vector<phi::DenseTensor*> inputs;
  size_t num_states = 0;
  std::vector<phi::DenseTensor*> outputs;
  std::vector<phi::DenseTensor*> state_outputs;
  std::deque<phi::DenseTensor> row_major_copies;  // what stands for inputs that are not in order

  // Adds an input. A state that is not in order is from now on.
  void append_input(phi::DenseTensor* tensor, bool is_state);
};

// Memory that runs pass on to each other. A run computes states beside the present ones, unless a
// step of an optimizer writes them, then the two change places: the old memory is used by the next
// run. The same is done for the random numbers it draws, for what such steps read, and for outputs
// that are no longer used.
class SpareTensors {
 public:
  // A tensor that was given back under this number, has this type and is not in use, or a new one.
  phi::DenseTensor take(size_t slot, const ResultType& type);
  // Memory that Paddle did not allocate is not kept.
  void give(size_t slot, phi::DenseTensor tensor);

 private:
  // The last one given back comes first. Two are kept: in a chain of equal operators one reads what
  // the other has written.
  using Slot = std::array<phi::DenseTensor, 2>;

  std::mutex mutex_;
  std::vector<Slot> tensors_;
};

// Whole numbers that are positions, of which a run is refused that has one out of range: where the
// device has no operator of ours that would look at them (core/ov/check_range_op.h).
struct RangeCheck {
  size_t input;
  // Of each position of the last axis, or one for all.
  std::vector<int64_t> low, high;
  std::vector<int64_t> ignored;  // values that are allowed as well
  std::string message;
};

struct BuiltFunction;

// The compiled function of one signature. Safe to run from several threads.
class NgraphFunction {
 public:
  // An output of at most this many bytes is kept for the next run: allocating a small one, and
  // giving the function another address, takes longer than computing it.
  static constexpr size_t kMaxRecycledOutputBytes = 65536;

  // Of a graph with so many outputs and states.
  NgraphFunction(BuiltFunction built, size_t num_outputs, size_t num_states,
                 std::shared_ptr<SpareTensors> spare_tensors);

  // Executes the function. Nothing is written before every check has passed and the computation
  // has succeeded. Throws InvalidInput, or what the CPU plugin throws; what else fails once writing
  // has begun is a PartialWrite.
  void run(const NgraphIO& io) const;

  // Whether it is for more than one signature.
  bool is_symbolic() const { return is_symbolic_; }

  bool has_little_to_do() const { return function_->settings().streams == 0; }

  // Whether only a run tells some size. After an exception in a run nobody knows which ones the
  // plugin was left with.
  bool has_dynamic_dims() const { return function_->settings().deferred_errors_id != 0; }

  // Whether a later run may make something of weights that stays.
  bool may_pack() const { return function_->may_pack() || has_dynamic_dims(); }

  // Says that the function reads weights where they are, before anybody else has it.
  void use_weights_in_place(std::unique_ptr<WeightsInPlace> weights) {
    weights_in_place_ = std::move(weights);
  }
  // nullptr if it has its own.
  WeightsInPlace* weights_in_place() const { return weights_in_place_.get(); }

 private:
  // The results: outputs, then new values of states, then what steps of optimizers read. What is
  // left of that is in `pinned`.
  std::vector<phi::DenseTensor> execute(const NgraphIO& io,
                                        const std::vector<phi::DenseTensor*>& parameters,
                                        PinnedValues* pinned) const;
  std::vector<phi::DenseTensor> execute_dynamic(
      const std::vector<phi::DenseTensor*>& parameters) const;
  std::vector<phi::DenseTensor> sample_random_inputs(const NgraphIO& io) const;
  // The steps of optimizers; `results` are those of the function, and `pinned` is what it holds.
  Updater::Run prepare_updates(const NgraphIO& io, const std::vector<phi::DenseTensor>& results,
                               const PinnedValues& pinned) const;
  // Hands out the outputs and gives the states their new values. `pinned` is gone after the steps.
  void publish(const NgraphIO& io, const Updater::Run* updates,
               std::vector<phi::DenseTensor> results, PinnedValues pinned) const;
  // Gives the states their new values, of which some are empty (a step has written there): by
  // exchanging buffers where nothing else can know the memory, else by copying.
  void publish_states(const NgraphIO& io, std::vector<phi::DenseTensor> fresh) const;

  std::unique_ptr<OvFunction> function_;
  std::vector<size_t> parameter_inputs_;
  std::vector<RandomSample> samples_;
  std::vector<RangeCheck> checks_;
  bool is_symbolic_;
  std::unique_ptr<Updater> updater_;             // absent if there are no steps of optimizers
  std::vector<size_t> state_result_indices_;     // see optimizer_updates.h
  std::vector<size_t> spare_slots_;              // of results behind the outputs, in spare_tensors_
  std::shared_ptr<SpareTensors> spare_tensors_;  // of the graph: states, random numbers, gradients
  mutable SpareTensors spare_outputs_;
  std::unique_ptr<WeightsInPlace> weights_in_place_;
};

}  // namespace paddle_ngraph
