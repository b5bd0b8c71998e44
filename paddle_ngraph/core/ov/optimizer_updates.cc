#include "core/ov/optimizer_updates.h"

#include <algorithm>
#include <array>
#include <utility>

#include <tbb/task_arena.h>

#include "core/common/error.h"
#include "core/common/float_environment.h"
#include "core/common/tbb_fork_state.h"
#include "core/common/vectorized.h"
#include "core/ov/kernels/clip.h"
#include "core/ov/kernels/optimizer.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

NGRAPH_VECTORIZED void add(int64_t count, const float* __restrict__ x, const float* __restrict__ y,
                           float* __restrict__ sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] = x[i] + y[i];
}

NGRAPH_VECTORIZED void add_to(int64_t count, const float* __restrict__ x, float* __restrict__ sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

// An optimizer update with the addresses of its operands, before it is applied.
struct PreparedUpdate {
  std::unique_ptr<OptimizerUpdate> step;
  std::vector<float*> states;
  std::vector<const float*> gradients;
  std::vector<float> factors;
  int64_t size;
  int64_t first_chunk;

  // Updates the elements [first, first + count) of the parameter and its states.
  void update(int64_t first, int64_t count) const {
    std::array<float, kStepChunk> sum;
    std::array<float*, 4> updated{};
    for (size_t i = 0; i < states.size(); ++i) updated.at(i) = states[i] + first;
    const float* grad = gradients.empty() ? nullptr : gradients[0] + first;
    if (gradients.size() > 1) {
      add(count, grad, gradients[1] + first, sum.data());
      for (size_t i = 2; i < gradients.size(); ++i) add_to(count, gradients[i] + first, sum.data());
      grad = sum.data();
    } else if (!factors.empty()) {
      std::copy_n(grad, count, sum.data());
      grad = sum.data();
    }
    for (float factor : factors) scale(sum.data(), count, factor, sum.data());
    step->update(count, grad, updated.data());
  }
};

// Optimizer updates that are applied in one parallel loop: none reads a state that another one
// writes.
class UpdateBatch {
 public:
  void add(PreparedUpdate step) {
    step.first_chunk = num_chunks_;
    num_chunks_ += (step.size + kStepChunk - 1) / kStepChunk;
    steps_.push_back(std::move(step));
  }

  void write() const {
    // All updates are one loop: most parameters are too small to be divided among threads.
    parallel_ranges(num_chunks_, 2 * kStepChunk,
                    [&](int64_t begin, int64_t end) { update(begin, end); });
  }

 private:
  // Updates the chunks [begin, end), counted through all updates of the batch.
  void update(int64_t begin, int64_t end) const {
    auto step = std::upper_bound(
        steps_.begin(), steps_.end(), begin,
        [](int64_t chunk, const PreparedUpdate& prepared) { return chunk < prepared.first_chunk; });
    --step;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      while (std::next(step) != steps_.end() && std::next(step)->first_chunk <= chunk) ++step;
      const int64_t first = (chunk - step->first_chunk) * kStepChunk;
      step->update(first, std::min(kStepChunk, step->size - first));
    }
  }

  std::vector<PreparedUpdate> steps_;
  int64_t num_chunks_ = 0;
};

tbb::task_arena make_arena(int num_threads) {
  return tbb::task_arena(num_threads > 0 ? num_threads : tbb::task_arena::automatic);
}

void require_gradients(const Update& update) {
  const bool fills = static_cast<Optimizer>(update.optimizer) == Optimizer::kFill;
  if (update.gradients.empty() == fills) return;
  throw NgraphError("an optimizer has no gradient, or a state that is filled has one");
}

float scalar(const FloatSpan& source) {
  if (source.data == nullptr || source.size != 1) {
    throw InvalidInput("a number of an optimizer is not one element");
  }
  return *source.data;
}

}  // namespace

MemoryRange::MemoryRange(const void* data, size_t num_bytes, bool is_written)
    : begin(reinterpret_cast<uintptr_t>(data)), end(begin + num_bytes), is_written(is_written) {}

void require_disjoint(std::vector<MemoryRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const MemoryRange& left, const MemoryRange& right) {
    return left.begin != right.begin ? left.begin < right.begin : left.end < right.end;
  });
  // Ends of the memory ranges so far: the largest of all, and the largest of written ones.
  uintptr_t end = 0, written_end = 0;
  for (const auto& next : ranges) {
    if (next.begin == next.end) continue;
    if (next.begin < (next.is_written ? end : written_end)) {
      throw InvalidInput("what is overwritten shares memory with something else that is given");
    }
    end = std::max(end, next.end);
    if (next.is_written) written_end = std::max(written_end, next.end);
  }
}

class LoopThreads::Implementation {
 public:
  explicit Implementation(int num_threads) : arena(make_arena(num_threads)) {}

  mutable tbb::task_arena arena;
};

LoopThreads::LoopThreads(int num_threads)
    : implementation_(std::make_unique<Implementation>(num_threads)) {
  mark_tbb_started();
}

LoopThreads::~LoopThreads() = default;

void LoopThreads::run(int64_t count, int64_t steps,
                      const std::function<void(int64_t begin, int64_t end)>& body) const {
  const DefaultFloatEnvironment environment;
  if (count * steps < 2 * kStepsPerTask || are_tbb_threads_lost()) return body(0, count);
  implementation_->arena.execute([&] { parallel_ranges(count, steps, body); });
}

void require_valid(const Update& update) {
  require_gradients(update);
  const std::vector<float> scalars(update.parameters.size(), 0.5F);
  step_of(static_cast<Optimizer>(update.optimizer), update.attributes, scalars,
          update.states.size());
}

bool Updates::write(size_t state) const {
  return std::any_of(steps.begin(), steps.end(), [&](const Update& step) {
    return std::find(step.states.begin(), step.states.end(), state) != step.states.end();
  });
}

std::vector<size_t> state_result_indices(const Updates& updates, size_t num_outputs,
                                         size_t num_states) {
  std::vector<size_t> results;
  size_t next = num_outputs;
  for (size_t state = 0; state < num_states; ++state) {
    results.push_back(updates.write(state) ? kNoResult : next++);
  }
  return results;
}

class Updater::Implementation {
 public:
  explicit Implementation(Updates updates)
      : updates(std::move(updates)), arena(make_arena(this->updates.num_threads)) {
    const DefaultFloatEnvironment environment;
    arena.initialize();
  }

  const Updates updates;
  mutable tbb::task_arena arena;
};

class Updater::Run::Implementation {
 public:
  explicit Implementation(tbb::task_arena* arena) : arena_(arena) {}

  void add(const Update& update, const std::vector<FloatSpan>& inputs,
           const std::vector<FloatSpan>& results, const std::vector<FloatSpan>& states) {
    const auto source = [&](int64_t source_index) {
      return source_index >= 0 ? inputs.at(static_cast<size_t>(source_index))
                               : results.at(static_cast<size_t>(-1 - source_index));
    };
    PreparedUpdate next;
    std::vector<float> scalars;
    for (int64_t parameter : update.parameters) scalars.push_back(scalar(source(parameter)));
    for (int64_t factor : update.factors) next.factors.push_back(scalar(source(factor)));
    const size_t size = states.at(update.states.at(0)).size;
    for (size_t state : update.states) next.states.push_back(of_size(size, states.at(state)));
    for (int64_t gradient : update.gradients) {
      next.gradients.push_back(of_size(size, source(gradient)));
    }
    const auto optimizer = static_cast<Optimizer>(update.optimizer);
    require_gradients(update);
    next.step = step_of(optimizer, update.attributes, scalars, next.states.size());
    next.size = static_cast<int64_t>(size);
    (optimizer == Optimizer::kFill ? fills_ : steps_).add(std::move(next));
  }

  void write() const {
    const DefaultFloatEnvironment environment;
    arena_->execute([&] {
      steps_.write();
      fills_.write();
    });
  }

 private:
  static float* of_size(size_t size, const FloatSpan& floats) {
    if (floats.data == nullptr || floats.size != size) {
      throw InvalidInput("a parameter, its gradient and its states differ in size");
    }
    return floats.data;
  }

  tbb::task_arena* arena_;
  UpdateBatch steps_, fills_;
};

Updater::Run::Run(const Updater& updater)
    : implementation_(std::make_unique<Implementation>(&updater.implementation_->arena)) {}

Updater::Run::Run(Run&& other) noexcept = default;

Updater::Run::~Run() = default;

void Updater::Run::write() const { implementation_->write(); }

Updater::Updater(Updates updates)
    : implementation_(std::make_unique<Implementation>(std::move(updates))) {}

Updater::~Updater() = default;

const Updates& Updater::updates() const { return implementation_->updates; }

Updater::Run Updater::prepare(const std::vector<FloatSpan>& inputs,
                              const std::vector<FloatSpan>& results,
                              const std::vector<FloatSpan>& states) const {
  Run run(*this);
  for (const auto& step : updates().steps) {
    run.implementation_->add(step, inputs, results, states);
  }
  return run;
}

}  // namespace paddle_ngraph
