#include "core/engine/ngraph_function.h"

#include <cstring>

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/first_out_of_range.h"
#include "core/engine/events.h"
#include "core/engine/model_builder.h"
#include "core/engine/partial_write.h"
#include "core/engine/work_spans.h"
#include "core/paddle/exposure.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// A state of at most this many bytes is copied back: cheaper than exchanging buffers.
constexpr size_t kMaxCopiedStateBytes = 4096;

// Throws InvalidInput unless int32 represents all elements of an int64 input: the engine computes
// indices in int32.
void require_int32_range(const phi::DenseTensor& tensor, size_t input) {
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
                            check.high[bound], ", but got ", ids[at], "."),
                     check.code, check.op_id);
}

void require_range(const phi::DenseTensor& tensor, const RangeCheck& check) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (tensor.dtype() == paddle::DataType::INT64) {
    require_range(static_cast<const int64_t*>(memory(tensor)), count, check);
  } else {
    require_range(static_cast<const int32_t*>(memory(tensor)), count, check);
  }
}

// Throws InvalidInput if the memory of a state overlaps that of another state or of an input.
void require_disjoint_states(const NgraphIO& io) {
  if (io.num_states == 0) return;
  const size_t first = io.inputs.size() - io.num_states;
  std::vector<MemoryRange> ranges;
  ranges.reserve(io.inputs.size());
  for (size_t i = 0; i < io.inputs.size(); ++i) {
    const auto& input = *io.inputs[i];
    if (input.Holder() == nullptr) continue;
    ranges.emplace_back(memory(input), num_bytes(input), i >= first);
  }
  require_disjoint(std::move(ranges));
}

// Throws InvalidInput if a state overlaps memory pinned by the function: optimizer updates write
// states.
void require_disjoint_pinned_values(const PinnedValues& pinned,
                                    const std::vector<FloatSpan>& states) {
  if (pinned.values.empty()) return;
  std::vector<MemoryRange> ranges;
  const auto add = [&](const FloatSpan& floats, bool is_written) {
    ranges.emplace_back(floats.data, floats.size * sizeof(float), is_written);
  };
  for (const auto& value : pinned.values) add(value, false);
  for (const auto& state : states) add(state, true);
  require_disjoint(std::move(ranges));
}

}  // namespace

void NgraphIO::append_input(phi::DenseTensor* tensor, bool is_state) {
  if (tensor->initialized() && !is_row_major(*tensor)) {
    const WorkSpan span(WorkKind::kCopy);
    phi::DenseTensor row_major = to_row_major(*tensor);
    tensor =
        is_state ? &(*tensor = std::move(row_major)) : &row_major_copies.emplace_back(row_major);
  }
  inputs.push_back(tensor);
}

NgraphFunction::NgraphFunction(BuiltFunction built, size_t num_outputs, size_t num_states,
                               std::shared_ptr<SpareTensors> spare_tensors)
    : function_(std::move(built.function)),
      parameter_inputs_(std::move(built.parameter_inputs)),
      samples_(std::move(built.samples)),
      checks_(std::move(built.checks)),
      is_symbolic_(built.is_symbolic()),
      state_result_indices_(state_result_indices(built.updates, num_outputs, num_states)),
      spare_tensors_(std::move(spare_tensors)) {
  for (size_t state = 0; state < num_states; ++state) {
    if (state_result_indices_[state] != kNoResult) spare_slots_.push_back(state);
  }
  const size_t num_results = function_->results().size();
  for (size_t next = num_states + samples_.size(); num_outputs + spare_slots_.size() < num_results;
       ++next) {
    spare_slots_.push_back(next);
  }
  if (!built.updates.steps.empty()) updater_ = std::make_unique<Updater>(std::move(built.updates));
}

void NgraphFunction::run(const NgraphIO& io) const {
  function_->require_elements();
  require_disjoint_states(io);
  // The outputs are released before the function runs, so that it can reuse their memory.
  for (auto* output : io.outputs) *output = phi::DenseTensor();
  for (size_t i = 0; i < parameter_inputs_.size(); ++i) {
    const size_t input = parameter_inputs_[i];
    if (input >= io.inputs.size() || function_->passes_bytes(i)) continue;
    require_int32_range(*io.inputs[input], input);
  }
  for (const auto& check : checks_) require_range(*io.inputs.at(check.input), check);
  StreamGuard stream(!samples_.empty());
  std::vector<phi::DenseTensor> sampled = sample_random_inputs(io);
  std::vector<phi::DenseTensor*> parameters;
  parameters.reserve(parameter_inputs_.size());
  for (size_t input : parameter_inputs_) {
    const bool given = input < io.inputs.size();
    parameters.push_back(given ? io.inputs[input] : &sampled[input - io.inputs.size()]);
  }
  PinnedValues pinned;
  std::vector<phi::DenseTensor> fresh = function_->has_dynamic_shapes()
                                            ? execute_dynamic(parameters)
                                            : execute(io, parameters, &pinned);
  std::optional<Updater::Run> updates;
  if (updater_ != nullptr) updates.emplace(prepare_updates(io, fresh, pinned));
  inject_fault(Step::kRun);
  stream.used();
  for (size_t i = 0; i < sampled.size(); ++i) {
    spare_tensors_->give(io.num_states + i, std::move(sampled[i]));
  }
  try {
    publish(io, updates ? &*updates : nullptr, std::move(fresh), std::move(pinned));
  } catch (const InvalidInput& error) {
    throw AfterPartialWrite<InvalidInput>(error);
  } catch (const NgraphError& error) {
    throw AfterPartialWrite<NgraphError>(error);
  } catch (const std::exception& error) {
    throw AfterPartialWrite<NgraphError>(error);
  }
}

Updater::Run NgraphFunction::prepare_updates(const NgraphIO& io,
                                             const std::vector<phi::DenseTensor>& results,
                                             const PinnedValues& pinned) const {
  const auto floats = [](const phi::DenseTensor& tensor) {
    const bool has_floats =
        tensor.dtype() == paddle::DataType::FLOAT32 && tensor.Holder() != nullptr;
    if (!has_floats) return FloatSpan{nullptr, 0};
    return FloatSpan{static_cast<float*>(memory(tensor)), static_cast<size_t>(tensor.numel())};
  };
  std::vector<FloatSpan> inputs, result_values;
  inputs.reserve(io.inputs.size());
  result_values.reserve(results.size());
  for (const auto* input : io.inputs) inputs.push_back(floats(*input));
  for (const auto& result : results) result_values.push_back(floats(result));
  result_values.insert(result_values.end(), pinned.values.begin(), pinned.values.end());
  const std::vector<FloatSpan> states(inputs.end() - static_cast<std::ptrdiff_t>(io.num_states),
                                      inputs.end());
  require_disjoint_pinned_values(pinned, states);
  return updater_->prepare(inputs, result_values, states);
}

void NgraphFunction::publish(const NgraphIO& io, const Updater::Run* updates,
                             std::vector<phi::DenseTensor> results, PinnedValues pinned) const {
  const size_t num_outputs = io.outputs.size();
  const bool is_recycling = !function_->has_dynamic_shapes();
  for (size_t i = 0; i < num_outputs; ++i) {
    io.outputs[i]->ShareDataWith(results[i]);
    const bool is_recycled = is_recycling && num_bytes(results[i]) <= kMaxRecycledOutputBytes;
    if (is_recycled) spare_outputs_.give(i, std::move(results[i]));
  }
  if (updates != nullptr) {
    const WorkSpan span(WorkKind::kUpdate);
    updates->write();
    inject_fault(Step::kWrite);
    add(Quantity::kStepsInPlace, updater_->updates().steps.size());
    add(Quantity::kGradientsHeld, pinned.values.size());
  }
  pinned = {};
  std::vector<phi::DenseTensor> fresh(io.num_states);
  size_t next = num_outputs;
  for (size_t i = 0; i < io.num_states; ++i) {
    if (state_result_indices_[i] != kNoResult) fresh[i] = std::move(results[next++]);
  }
  for (; is_recycling && next < results.size(); ++next) {
    spare_tensors_->give(spare_slots_[next - num_outputs], std::move(results[next]));
  }
  publish_states(io, std::move(fresh));
}

std::vector<phi::DenseTensor> NgraphFunction::execute(
    const NgraphIO& io, const std::vector<phi::DenseTensor*>& parameters,
    PinnedValues* pinned) const {
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
                        : spare_tensors_->take(spare_slots_[i - num_outputs], results[i]));
    outputs.push_back(memory(fresh.back()));
  }
  const WorkSpan span(WorkKind::kCompute);
  if (function_->run(inputs, outputs, pinned)) add(Quantity::kRestsSharedOut);
  return fresh;
}

std::vector<phi::DenseTensor> NgraphFunction::execute_dynamic(
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
  const WorkSpan span(WorkKind::kCompute);
  const bool has_shared = function_->run(inputs, [&](size_t i, const std::vector<size_t>& shape) {
    fresh[i] = allocate({results[i].element, shape});
    return memory(fresh[i]);
  });
  if (has_shared) add(Quantity::kRestsSharedOut);
  return fresh;
}

std::vector<phi::DenseTensor> NgraphFunction::sample_random_inputs(const NgraphIO& io) const {
  if (samples_.empty()) return {};
  const WorkSpan span(WorkKind::kSample);
  std::vector<phi::DenseTensor> sampled(samples_.size());
  std::vector<void*> numbers(samples_.size(), nullptr);
  for (size_t input : parameter_inputs_) {
    if (input < io.inputs.size()) continue;
    const size_t i = input - io.inputs.size();
    sampled[i] = spare_tensors_->take(io.num_states + i, samples_[i].type());
    numbers[i] = memory(sampled[i]);
  }
  sample(samples_, numbers);
  return sampled;
}

void NgraphFunction::publish_states(const NgraphIO& io, std::vector<phi::DenseTensor> fresh) const {
  const auto states = io.inputs.end() - static_cast<std::ptrdiff_t>(io.num_states);
  for (auto* output : io.state_outputs) {
    // Releases the operator's output for the state, which would count as another holder of its
    // memory.
    if (output != nullptr) *output = phi::DenseTensor();
  }
  // Old buffer of a state: kNone (the new value is copied into it or was written there), kInUse
  // (others may still read it), or kFree (reusable).
  enum class OldBuffer { kNone, kInUse, kFree };
  std::vector<OldBuffer> old_buffers(io.num_states, OldBuffer::kNone);
  std::vector<phi::DenseTensor> old;
  old.reserve(io.num_states);
  for (size_t i = 0; i < io.num_states; ++i) old.push_back(*states[i]);
  {
    const QuiescenceLock quiescence;
    for (size_t i = 0; i < io.num_states; ++i) {
      if (state_result_indices_[i] == kNoResult) continue;
      const bool fits = has_capacity(old[i], fresh[i]);
      if (fits && num_bytes(fresh[i]) <= kMaxCopiedStateBytes) continue;
      const bool is_free = quiescence.may_swap_buffer(states[i], old[i]);
      if (fits && !is_free) continue;
      states[i]->ShareDataWith(fresh[i]);
      old_buffers[i] = is_free ? OldBuffer::kFree : OldBuffer::kInUse;
    }
  }
  for (size_t i = 0; i < io.num_states; ++i) {
    if (state_result_indices_[i] == kNoResult) {
      // An optimizer update has written this state in place.
    } else if (old_buffers[i] == OldBuffer::kNone) {
      // Copies the new value into the memory of the state, as Paddle's own kernels do: tensors that
      // share the memory get the new contents too.
      const WorkSpan span(WorkKind::kCopy);
      if (fresh[i].numel() > 0) std::memcpy(old[i].data(), fresh[i].data(), num_bytes(fresh[i]));
      phi::DenseTensorMeta meta = fresh[i].meta();
      meta.offset = old[i].meta().offset;
      states[i]->set_meta(meta);
      spare_tensors_->give(i, std::move(fresh[i]));
    } else if (old_buffers[i] == OldBuffer::kFree) {
      spare_tensors_->give(i, std::move(old[i]));
    }
    if (i < io.state_outputs.size() && io.state_outputs[i] != nullptr) {
      io.state_outputs[i]->ShareDataWith(*states[i]);
    }
  }
}

phi::DenseTensor SpareTensors::take(size_t slot, const ResultType& type) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (slot < tensors_.size()) {
      for (auto& tensor : tensors_[slot]) {
        if (!fits(tensor, type) || tensor.Holder().use_count() > 1) continue;
        return std::exchange(tensor, phi::DenseTensor());
      }
    }
  }
  return allocate(type);
}

void SpareTensors::give(size_t slot, phi::DenseTensor tensor) {
  // Memory that Paddle did not allocate belongs to an array of the user, and is not recycled.
  if (!is_paddle_allocated(tensor)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot >= tensors_.size()) tensors_.resize(slot + 1);
  auto& slot_tensors = tensors_[slot];
  std::swap(slot_tensors.front(), tensor);
  for (size_t i = 1; i < slot_tensors.size() && tensor.Holder() != nullptr; ++i)
    std::swap(slot_tensors[i], tensor);
}

}  // namespace paddle_ngraph
