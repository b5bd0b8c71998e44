#include "core/engine/ngraph_function.h"

#include <cstring>

#include "core/common/error.h"
#include "core/common/faults.h"
#include "core/common/first_out_of_range.h"
#include "core/engine/engine_stats.h"
#include "core/engine/has_written.h"
#include "core/engine/model_builder.h"
#include "core/paddle/exposure.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// A state of at most this many bytes is copied back: cheaper than exchanging buffers.
constexpr size_t kSmallState = 4096;

// In an interval, int64 tensors hold positions, which the engine computes in 32 bits.
void require_32_bits(const phi::DenseTensor& tensor, size_t input) {
  if (tensor.dtype() != paddle::DataType::INT64) return;
  const auto* values = static_cast<const int64_t*>(memory(tensor));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (values[i] == static_cast<int32_t>(values[i])) continue;
    throw InvalidInput(concat("input ", input, " of the interval holds positions, and ", values[i],
                              " is out of range: the engine has 32 bits"));
  }
}

template <typename Id>
void require_range(const Id* ids, size_t count, const RangeCheck& check) {
  const size_t at = first_out_of_range(ids, count, check.low, check.high, check.ignored);
  if (at == count) return;
  const size_t bound = at % check.low.size();
  throw InvalidInput(concat(check.message, " Expected ", check.low[bound], " <= value < ",
                            check.high[bound], ", but got ", ids[at], "."));
}

void require_range(const phi::DenseTensor& tensor, const RangeCheck& check) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (tensor.dtype() == paddle::DataType::INT64) {
    require_range(static_cast<const int64_t*>(memory(tensor)), count, check);
  } else {
    require_range(static_cast<const int32_t*>(memory(tensor)), count, check);
  }
}

// Throws InvalidInput if a state shares memory with another state or with an input.
void require_states_apart(const NgraphIO& io) {
  if (io.num_states == 0) return;
  const size_t first = io.inputs.size() - io.num_states;
  std::vector<Stretch> stretches;
  stretches.reserve(io.inputs.size());
  for (size_t i = 0; i < io.inputs.size(); ++i) {
    const auto& input = *io.inputs[i];
    if (input.Holder() == nullptr) continue;
    stretches.emplace_back(memory(input), num_bytes(input), i >= first);
  }
  require_apart(std::move(stretches));
}

// Throws InvalidInput if a state is where the function holds something: the steps write states.
void require_held_apart(const Held& held, const std::vector<Floats>& states) {
  if (held.values.empty()) return;
  std::vector<Stretch> stretches;
  const auto add = [&](const Floats& floats, bool is_written) {
    stretches.emplace_back(floats.data, floats.size * sizeof(float), is_written);
  };
  for (const auto& value : held.values) add(value, false);
  for (const auto& state : states) add(state, true);
  require_apart(std::move(stretches));
}

}  // namespace

void NgraphIO::take(phi::DenseTensor* tensor, bool is_state) {
  if (tensor->initialized() && !is_in_order(*tensor)) {
    phi::DenseTensor ordered = in_order(*tensor);
    tensor = is_state ? &(*tensor = std::move(ordered)) : &reordered.emplace_back(ordered);
  }
  inputs.push_back(tensor);
}

NgraphFunction::NgraphFunction(BuiltFunction built, size_t num_outputs, size_t num_states,
                               std::shared_ptr<SpareTensors> spare_tensors)
    : function_(std::move(built.function)),
      parameter_inputs_(std::move(built.parameter_inputs)),
      draws_(std::move(built.draws)),
      checks_(std::move(built.checks)),
      is_open_(built.is_open()),
      results_of_states_(results_of_states(built.updates, num_outputs, num_states)),
      spare_tensors_(std::move(spare_tensors)) {
  for (size_t state = 0; state < num_states; ++state) {
    if (results_of_states_[state] != kNoResult) spare_numbers_.push_back(state);
  }
  const size_t num_results = function_->results().size();
  for (size_t next = num_states + draws_.size(); num_outputs + spare_numbers_.size() < num_results;
       ++next) {
    spare_numbers_.push_back(next);
  }
  if (!built.updates.steps.empty()) updater_ = std::make_unique<Updater>(std::move(built.updates));
}

void NgraphFunction::run(const NgraphIO& io) const {
  function_->require_elements();
  require_states_apart(io);
  // Released first: this run may reuse the memory that the previous run left there.
  for (auto* output : io.outputs) *output = phi::DenseTensor();
  for (size_t input : parameter_inputs_) {
    if (input < io.inputs.size()) require_32_bits(*io.inputs[input], input);
  }
  for (const auto& check : checks_) require_range(*io.inputs.at(check.input), check);
  StreamGuard stream(!draws_.empty());
  std::vector<phi::DenseTensor> drawn = draw_numbers(io);
  std::vector<phi::DenseTensor*> parameters;
  parameters.reserve(parameter_inputs_.size());
  for (size_t input : parameter_inputs_) {
    const bool given = input < io.inputs.size();
    parameters.push_back(given ? io.inputs[input] : &drawn[input - io.inputs.size()]);
  }
  Held held;
  std::vector<phi::DenseTensor> fresh =
      function_->has_open_shapes() ? execute_open(parameters) : execute(io, parameters, &held);
  std::optional<Updater::Run> updates;
  if (updater_ != nullptr) updates.emplace(prepare_updates(io, fresh, held));
  may_fail(Step::kRun);
  stream.used();
  for (size_t i = 0; i < drawn.size(); ++i) {
    spare_tensors_->give(io.num_states + i, std::move(drawn[i]));
  }
  try {
    publish(io, updates ? &*updates : nullptr, std::move(fresh), std::move(held));
  } catch (const InvalidInput& error) {
    throw Written<InvalidInput>(error.what());
  } catch (const std::exception& error) {
    throw Written<NgraphError>(error.what());
  }
}

Updater::Run NgraphFunction::prepare_updates(const NgraphIO& io,
                                             const std::vector<phi::DenseTensor>& results,
                                             const Held& held) const {
  const auto floats = [](const phi::DenseTensor& tensor) {
    const bool has_floats =
        tensor.dtype() == paddle::DataType::FLOAT32 && tensor.Holder() != nullptr;
    if (!has_floats) return Floats{nullptr, 0};
    return Floats{static_cast<float*>(memory(tensor)), static_cast<size_t>(tensor.numel())};
  };
  std::vector<Floats> inputs, made;
  inputs.reserve(io.inputs.size());
  made.reserve(results.size());
  for (const auto* input : io.inputs) inputs.push_back(floats(*input));
  for (const auto& result : results) made.push_back(floats(result));
  made.insert(made.end(), held.values.begin(), held.values.end());
  const std::vector<Floats> states(inputs.end() - static_cast<std::ptrdiff_t>(io.num_states),
                                   inputs.end());
  require_held_apart(held, states);
  return updater_->prepare(inputs, made, states);
}

void NgraphFunction::publish(const NgraphIO& io, const Updater::Run* updates,
                             std::vector<phi::DenseTensor> results, Held held) const {
  const size_t num_outputs = io.outputs.size();
  const bool is_kept = !function_->has_open_shapes();
  for (size_t i = 0; i < num_outputs; ++i) {
    io.outputs[i]->ShareDataWith(results[i]);
    const bool is_taken_again = is_kept && num_bytes(results[i]) <= kSmallOutput;
    if (is_taken_again) spare_outputs_.give(i, std::move(results[i]));
  }
  if (updates != nullptr) {
    updates->write();
    may_fail(Step::kWrite);
    EngineStats::instance().steps_in_place += updater_->updates().steps.size();
    EngineStats::instance().gradients_held += held.values.size();
  }
  held = {};
  std::vector<phi::DenseTensor> fresh(io.num_states);
  size_t next = num_outputs;
  for (size_t i = 0; i < io.num_states; ++i) {
    if (results_of_states_[i] != kNoResult) fresh[i] = std::move(results[next++]);
  }
  for (; is_kept && next < results.size(); ++next) {
    spare_tensors_->give(spare_numbers_[next - num_outputs], std::move(results[next]));
  }
  publish_states(io, std::move(fresh));
}

std::vector<phi::DenseTensor> NgraphFunction::execute(
    const NgraphIO& io, const std::vector<phi::DenseTensor*>& parameters, Held* held) const {
  std::vector<const void*> inputs;
  inputs.reserve(parameters.size());
  for (const auto* tensor : parameters) inputs.push_back(memory(*tensor));
  const auto& results = function_->results();
  const size_t num_outputs = io.outputs.size();
  std::vector<phi::DenseTensor> fresh;
  std::vector<void*> outputs;
  fresh.reserve(results.size());
  outputs.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    fresh.push_back(i < num_outputs
                        ? spare_outputs_.take(i, results[i])
                        : spare_tensors_->take(spare_numbers_[i - num_outputs], results[i]));
    outputs.push_back(memory(fresh.back()));
  }
  if (function_->run(inputs, outputs, held)) ++EngineStats::instance().rests_shared_out;
  return fresh;
}

std::vector<phi::DenseTensor> NgraphFunction::execute_open(
    const std::vector<phi::DenseTensor*>& parameters) const {
  std::vector<Input> inputs;
  inputs.reserve(parameters.size());
  for (const auto* tensor : parameters) {
    const auto& dims = tensor->dims();
    Input input{memory(*tensor), {}};
    for (int i = 0; i < dims.size(); ++i) input.shape.push_back(static_cast<size_t>(dims[i]));
    inputs.push_back(std::move(input));
  }
  const auto& results = function_->results();
  std::vector<phi::DenseTensor> fresh(results.size());
  const bool has_shared = function_->run(inputs, [&](size_t i, const std::vector<size_t>& shape) {
    fresh[i] = allocate({results[i].element, shape});
    return memory(fresh[i]);
  });
  if (has_shared) ++EngineStats::instance().rests_shared_out;
  return fresh;
}

std::vector<phi::DenseTensor> NgraphFunction::draw_numbers(const NgraphIO& io) const {
  std::vector<phi::DenseTensor> drawn(draws_.size());
  std::vector<void*> numbers(draws_.size(), nullptr);
  for (size_t input : parameter_inputs_) {
    if (input < io.inputs.size()) continue;
    const size_t i = input - io.inputs.size();
    drawn[i] = spare_tensors_->take(io.num_states + i, draws_[i].type());
    numbers[i] = memory(drawn[i]);
  }
  draw(draws_, numbers);
  return drawn;
}

void NgraphFunction::publish_states(const NgraphIO& io, std::vector<phi::DenseTensor> fresh) const {
  const auto states = io.inputs.end() - static_cast<std::ptrdiff_t>(io.num_states);
  for (auto* output : io.state_outputs) {
    if (output != nullptr) *output = phi::DenseTensor();  // the operator's own name for the state
  }
  // What the old value leaves behind: no memory (the new value is copied into it, or there
  // already), memory that others may still read, or memory to reuse.
  enum class Left { kNone, kInUse, kFree };
  std::vector<Left> left(io.num_states, Left::kNone);
  std::vector<phi::DenseTensor> old;
  old.reserve(io.num_states);
  for (size_t i = 0; i < io.num_states; ++i) old.push_back(*states[i]);
  {
    const Standstill standstill;
    for (size_t i = 0; i < io.num_states; ++i) {
      if (results_of_states_[i] == kNoResult) continue;
      const bool fits = has_room(old[i], fresh[i]);
      if (fits && num_bytes(fresh[i]) <= kSmallState) continue;
      const bool is_free = standstill.may_exchange(states[i], old[i]);
      if (fits && !is_free) continue;
      states[i]->ShareDataWith(fresh[i]);
      left[i] = is_free ? Left::kFree : Left::kInUse;
    }
  }
  for (size_t i = 0; i < io.num_states; ++i) {
    if (results_of_states_[i] == kNoResult) {
      // A step has written there.
    } else if (left[i] == Left::kNone) {
      // In place, as Paddle's own kernels write: whoever shares the memory sees the new contents.
      if (fresh[i].numel() > 0) std::memcpy(old[i].data(), fresh[i].data(), num_bytes(fresh[i]));
      phi::DenseTensorMeta meta = fresh[i].meta();
      meta.offset = old[i].meta().offset;
      states[i]->set_meta(meta);
      spare_tensors_->give(i, std::move(fresh[i]));
    } else if (left[i] == Left::kFree) {
      spare_tensors_->give(i, std::move(old[i]));
    }
    if (i < io.state_outputs.size() && io.state_outputs[i] != nullptr) {
      io.state_outputs[i]->ShareDataWith(*states[i]);
    }
  }
}

phi::DenseTensor SpareTensors::take(size_t number, const ResultType& type) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number < tensors_.size()) {
      for (auto& tensor : tensors_[number]) {
        if (!fits(tensor, type) || tensor.Holder().use_count() > 1) continue;
        return std::exchange(tensor, phi::DenseTensor());
      }
    }
  }
  return allocate(type);
}

void SpareTensors::give(size_t number, phi::DenseTensor tensor) {
  if (!is_of_paddle(tensor)) return;  // an array of the user's
  std::lock_guard<std::mutex> lock(mutex_);
  if (number >= tensors_.size()) tensors_.resize(number + 1);
  auto& kept = tensors_[number];
  std::swap(kept.front(), tensor);
  for (size_t i = 1; i < kept.size() && tensor.Holder() != nullptr; ++i) std::swap(kept[i], tensor);
}

}  // namespace paddle_ngraph
