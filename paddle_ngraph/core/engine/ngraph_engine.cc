#include "core/engine/ngraph_engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include <pthread.h>

#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/include/api.h"

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/openvino_use.h"
#include "core/engine/awaited_build.h"
#include "core/engine/compile_job.h"
#include "core/engine/engine_settings.h"
#include "core/engine/engines.h"
#include "core/engine/events.h"
#include "core/engine/partial_write.h"
#include "core/engine/work_spans.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/tensors.h"

// Paddle's flag FLAGS_check_nan_inf, which checks the results of kernels for NaN and infinity.
COMMON_DECLARE_bool(check_nan_inf);

namespace paddle_ngraph {

namespace {

// A mutex that a thread locks while it builds a function of a graph; graphs share 64 of them.
// Recursive: a signal handler may run the same program during the build in Python, and builds the
// function too.
using BuildingMutex = std::recursive_mutex;

std::array<BuildingMutex, 64> building_mutexes;

// Replaces the mutexes in a forked process by new ones: the threads that hold the locked ones do
// not exist in this process.
void renew_building_mutexes() {
  for (auto& mutex : building_mutexes) new (&mutex) BuildingMutex();
}

BuildingMutex& building_mutex(uint64_t graph) {
  static const int registered = pthread_atfork(nullptr, nullptr, renew_building_mutexes);
  static_cast<void>(registered);
  return building_mutexes[graph % building_mutexes.size()];
}

// The reason of the event of a run that raises the exception that is being handled.
Reason reason_of_raised() {
  try {
    throw;
  } catch (const PythonInterrupt&) {
    return Reason::kInterrupted;
  } catch (const PartialWrite&) {
    return Reason::kPartialWrite;
  } catch (const NgraphError& error) {
    if (error.code() == ErrorCode::kOutOfBounds) return Reason::kOutOfBounds;
  } catch (const common::enforce::EnforceNotMet&) {
    return Reason::kPaddleRaised;
  } catch (...) {  // any other error of the engine
  }
  return FLAGS_ngraph_strict ? Reason::kStrict : Reason::kEngineRaised;
}

bool has_empty(const std::vector<phi::DenseTensor*>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const auto* tensor) { return tensor->numel() == 0; });
}

}  // namespace

std::shared_ptr<NgraphEngine> NgraphEngine::of(const std::string& graph) {
  return Engines::instance().of(graph);
}

NgraphEngine::NgraphEngine(std::string graph)
    : graph_(std::move(graph)),
      functions_(graph_),
      background_(graph_),
      fallback_(graph_),
      sharing_(graph_.header()) {}

NgraphIO NgraphEngine::build_ng_io(paddle::CustomOpKernelContext* context) const {
  NgraphIO io;
  io.inputs.reserve(header().num_inputs);
  for (size_t slot = 0; slot < context->InputRange().size(); ++slot) {
    const auto range = context->InputRangeAt(slot);
    for (size_t i = range.first; i < range.second; ++i) {
      auto* tensor = dense(context->InputAt(i));
      if (tensor == nullptr) continue;
      io.append_input(tensor, io.inputs.size() >= header().num_read_only());
    }
  }
  graph_.require_inputs(io.inputs.size());
  require_outputs(*context);
  for (size_t i = 0; i < header().num_outputs; ++i) {
    io.outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  if (FLAGS_check_nan_inf) allocate_spare_outputs(context);
  io.num_states = header().num_states;
  if (header().num_states == 0) return io;
  const auto states = context->OutputRangeAt(context->OutputRange().size() - 1);
  for (size_t i = states.first; i < states.second; ++i) {
    io.state_outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  return io;
}

// Sets the outputs that the operator has beyond those of its graph to empty CPU tensors: Paddle's
// check for NaN reads the device of all outputs.
void NgraphEngine::allocate_spare_outputs(paddle::CustomOpKernelContext* context) const {
  const auto nothing = paddle::empty({0}, paddle::DataType::FLOAT32, paddle::CPUPlace());
  for (size_t i = header().num_outputs; i + 1 < context->OutputRange().size(); ++i) {
    dense(*context->MutableOutputAt(i))->ShareDataWith(*dense(nothing));
  }
}

void NgraphEngine::require_outputs(const paddle::CustomOpKernelContext& context) const {
  // Output ranges of the custom operator: one for each output, and a last one for all states.
  const auto& ranges = context.OutputRange();
  const auto& states = ranges.back();
  const bool fits =
      header().num_outputs < ranges.size() &&
      (header().num_states == 0 || states.second - states.first == header().num_states);
  if (fits) return;
  throw NgraphError(concat("the operator has room for ", ranges.size() - 1, " outputs and ",
                           states.second - states.first, " states, but its graph names ",
                           header().num_outputs, " and ", header().num_states));
}

Settings NgraphEngine::settings() const { return settings_of(header()); }

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io) {
  const Lookup found = find_or_build(io, settings(), nullptr, MissingFunction::kWait);
  if (found.is_skipped) {
    throw NgraphError("shapes that come too seldom for a function of their own");
  }
  return found.function;
}

std::shared_ptr<NgraphFunction> NgraphEngine::load_ng_function(const NgraphIO& io) {
  functions_.drop();
  const Settings now = settings();
  auto request = functions_.request(io, now);
  const auto frozen = functions_.freeze(&request, nullptr);
  return functions_.load(request, *frozen);
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_ng_function(const NgraphIO& io) {
  return functions_.build_uncached(io, settings());
}

std::shared_ptr<NgraphFunction> NgraphEngine::find(const NgraphIO& io, const Settings& settings) {
  auto request = functions_.request(io, settings);
  return functions_.find(&request);
}

NgraphEngine::Lookup NgraphEngine::find_or_build(const NgraphIO& io, const Settings& settings,
                                                 const Concurrency::Run& run,
                                                 MissingFunction missing) {
  const Settings shared = sharing_.shared(settings, run);
  if (shared.streams == settings.streams) return find_or_build(io, settings, nullptr, missing);
  if (!run.is_alone()) {
    if (auto function = find(io, shared)) return {std::move(function)};
  }
  const auto unshared = find(io, settings);
  if (unshared && (run.is_alone() || unshared->has_little_to_do())) return {unshared};
  try {
    Lookup found = find_or_build(io, shared, &settings, missing);
    if (found.function == nullptr) {
      return unshared ? Lookup{unshared, false, std::move(found.job)} : std::move(found);
    }
    // If building the shared function has evicted the unshared one, the cache has no room for both,
    // and the two functions would evict each other in turn.
    if (unshared && !find(io, settings)) sharing_.disable();
    return found;
  } catch (const InvalidInput&) {
    // Ignored, since the input may not be the cause: building the unshared function will show that.
  } catch (const std::exception&) {
    sharing_.disable();
  }
  return find_or_build(io, settings, nullptr, missing);
}

NgraphEngine::Lookup NgraphEngine::find_or_build(const NgraphIO& io, const Settings& settings,
                                                 const Settings* settings_if_building,
                                                 MissingFunction missing) {
  const Epoch since = Epoch::now();
  auto request = functions_.request(io, settings);
  functions_.drop_outdated();
  if (auto function = functions_.find(&request)) return {std::move(function)};
  if (!background_.is_idle(missing)) return {};
  // One build per graph at a time. The thread that holds the lock may be building the same
  // function, or another one of the graph.
  std::unique_lock<BuildingMutex> lock(building_mutex(graph_.id()), std::try_to_lock);
  if (!lock.owns_lock()) {
    if (settings_if_building) return find_or_build(io, *settings_if_building, nullptr, missing);
    const WorkSpan wait(WorkKind::kWait);
    lock.lock();
  }
  // Another thread has submitted a compile job for the graph.
  if (!background_.is_idle(missing)) return {};
  // Looks up again: another thread may have cached the function since the first lookup, however
  // short the wait for the lock was. Otherwise should_skip() would treat the function as built and
  // evicted.
  if (auto function = functions_.find_again(request)) return {std::move(function)};
  if (missing == MissingFunction::kMayFallBack &&
      !CompileJob::has_capacity_for(functions_.num_constant_bytes(request))) {
    if (background_.should_compile(io.inputs)) return {};
    missing = MissingFunction::kWaitUntilSignal;
  }
  if (functions_.should_skip(request)) return {nullptr, /*is_skipped=*/true};
  return load_or_build(std::move(request), since, missing);
}

NgraphEngine::Lookup NgraphEngine::load_or_build(FunctionStore::Request request, const Epoch& since,
                                                 MissingFunction missing) {
  const NgraphIO& io = request.io;
  bool in_place = functions_.may_use_weights_in_place(request, since);
  for (bool is_first = true;; is_first = false, in_place = false) {
    auto frozen = functions_.freeze(&request, in_place ? &since : nullptr);
    if (!frozen) continue;
    // Looks up the function again if its key has changed with the contents of an input, or after a
    // first build that failed to use the weights in place: another thread may have built the
    // function since.
    if (!is_first || frozen->key_has_changed) {
      if (auto function = functions_.find_again(request)) return {std::move(function)};
    }
    background_.failures().rethrow(request.key);
    if (auto function = functions_.load(request, *frozen)) return {std::move(function)};
    const bool compiles_in_background = missing == MissingFunction::kMayFallBack &&
                                        !functions_.is_collecting() &&
                                        background_.should_compile(io.inputs);
    // The next iteration copies the weights, which a compile job must not read in place.
    if (compiles_in_background && in_place) continue;
    if (compiles_in_background) {
      return {nullptr, /*is_skipped=*/false, create_job(request, frozen->snapshot)};
    }
    auto function = build_interruptibly(request, *frozen, missing);
    if (!function) return {};
    if (*function != nullptr && functions_.is_valid_for(**function, io)) {
      return {std::move(*function)};
    }
  }
}

std::optional<std::shared_ptr<NgraphFunction>> NgraphEngine::build_interruptibly(
    const FunctionStore::Request& request, const FunctionStore::FrozenInputs& frozen,
    MissingFunction missing) {
  // The build goes on without the variables of the run, if a signal ends it.
  const auto end_run = [](FunctionStore::Variables* variables) { variables->end_run(); };
  const std::unique_ptr<FunctionStore::Variables, decltype(end_run)> run(frozen.variables.get(),
                                                                         end_run);
  auto build = awaited_build_.lock();
  const bool is_own = build == nullptr || !build->is_for(request.key);
  if (is_own) {
    build = std::make_shared<AwaitedBuild>(
        std::shared_ptr<FunctionStore>(shared_from_this(), &functions_), request.key, frozen,
        request.settings);
    awaited_build_ = build;
  }
  const std::string may_leave = missing == MissingFunction::kWait ? "" : graph_.text();
  const auto wait = [&] {
    const WorkSpan span(WorkKind::kWait);
    return wait_for_build(build, may_leave);
  };
  switch (wait()) {
    case BuildWait::kInterrupted:
      return std::nullopt;
    case BuildWait::kCallerBuilds:
      build->build();
      break;
    case BuildWait::kOver:
      break;
  }
  auto function = build->function();
  // Otherwise the weights were written, which the build of an earlier run has read in place.
  if (function != nullptr || is_own) return function;
  return build_interruptibly(request, frozen, missing);
}

std::shared_ptr<CompileJob> NgraphEngine::create_job(
    const FunctionStore::Request& request, const std::shared_ptr<const Snapshot>& snapshot) {
  return std::make_shared<CompileJob>(
      std::shared_ptr<FunctionStore>(shared_from_this(), &functions_), &background_, request.key,
      snapshot, request.settings);
}

void NgraphEngine::run(const NgraphIO& io) {
  const MissingFunction missing = BackgroundCompiler::missing_function();
  if (verified_runs_.next()) return run_verified(io, missing);
  if (verified_runs_.profiles()) return run_profiled(io, missing);
  run_recorded(io, missing);
}

void NgraphEngine::run_verified(const NgraphIO& io, MissingFunction missing) {
  VerifiedRun verified(io);
  if (run_recorded(io, missing) != Reason::kEngine) return;
  verified.check(graph_.text(), io, functions_.weights().last_digests(io.inputs));
}

void NgraphEngine::run_profiled(const NgraphIO& io, MissingFunction missing) {
  VerifiedRun copied(io);
  if (run_recorded(io, missing) != Reason::kEngine) return;
  verified_runs_.set_profiled();
  copied.profile(graph_.text());
}

Reason NgraphEngine::run_recorded(const NgraphIO& io, MissingFunction missing) {
  const int64_t start = ticks();
  try {
    const Reason reason = run(io, missing);
    record_event(reason, graph_.subgraph_id(), start);
    return reason;
  } catch (...) {
    record_event(reason_of_raised(), graph_.subgraph_id(), start);
    throw;
  }
}

Reason NgraphEngine::run(const NgraphIO& io, MissingFunction missing) {
  const Settings now = settings();
  Attempt attempt;
  if (FLAGS_ngraph_strict) {
    run_function(io, now, MissingFunction::kWait, &attempt);
    // The lookup skips the build only if FLAGS_ngraph_strict has been turned off meanwhile: then
    // the run starts again, and may fall back.
    return attempt.found.is_skipped ? run(io, missing) : Reason::kEngine;
  }
  if (fallback_.is_denied()) {
    fallback_.run(io);
    return Reason::kDenied;
  }
  if (is_openvino_lost()) {
    fallback_.run(io);
    return Reason::kForked;
  }
  // Paddle's kernels run, since its check for NaN names the operator that computes one.
  if (FLAGS_check_nan_inf) {
    try {
      fallback_.run(io);
      return Reason::kNanCheck;
    } catch (const NgraphError&) {  // the fallback is unavailable: the engine runs the function
    }
  }
  try_function(io, now, missing, &attempt);
  Lookup& found = attempt.found;
  if (attempt.failure != nullptr && is_openvino_lost()) {
    found.function.reset();
    fallback_.run(io);
    return Reason::kForked;
  }
  Reason reason = Reason::kEngine;
  if (attempt.failure != nullptr) {
    reason = reason_of(attempt, io);
    // Releases the function before the fallback runs, which may need its memory.
    found.function.reset();
    fallback_.run_after_failure(io, attempt.failure, attempt.is_deniable);
  } else if (found.is_skipped) {
    reason = run_fallback_without_compiling(io, now);
  } else if (found.function == nullptr) {
    reason = run_fallback_while_compiling(io, &found.job);
  } else {
    fallback_.note_engine_run();
  }
  if (found.job != nullptr) BackgroundCompiler::submit(found.job);
  return reason;
}

Reason NgraphEngine::reason_of(const Attempt& attempt, const NgraphIO& io) {
  if (attempt.step == Step::kData) return has_empty(io.inputs) ? Reason::kEmpty : Reason::kInput;
  try {
    std::rethrow_exception(attempt.failure);
  } catch (const std::bad_alloc&) {
    return Reason::kOutOfMemory;
  } catch (const NgraphError& error) {
    if (error.code() == ErrorCode::kInt32Overflow) return Reason::kOverflow;
    if (attempt.step == Step::kCompile) return Reason::kNotBuilt;
    const bool is_check = dynamic_cast<const InvalidInput*>(&error) != nullptr;
    return is_check ? Reason::kCheck : Reason::kRunFailed;
  } catch (...) {
    return attempt.step == Step::kCompile ? Reason::kNotBuilt : Reason::kRunFailed;
  }
}

void NgraphEngine::try_function(const NgraphIO& io, const Settings& settings,
                                MissingFunction missing, Attempt* attempt) {
  try {
    run_function(io, settings, missing, attempt);
  } catch (const PartialWrite&) {
    throw;
  } catch (const std::bad_alloc&) {
    attempt->failure = std::current_exception();
  } catch (const InvalidInput& error) {
    if (error.code() == ErrorCode::kOutOfBounds) throw;
    attempt->failure = std::current_exception();
    attempt->is_deniable = attempt->step == Step::kCompile;
  } catch (const std::exception&) {
    attempt->failure = std::current_exception();
    attempt->is_deniable = attempt->step != Step::kData;
  }
}

void NgraphEngine::run_function(const NgraphIO& given, const Settings& settings,
                                MissingFunction missing, Attempt* attempt) {
  inject_fault(attempt->step = Step::kData);
  graph_.require_valid(given.inputs);
  attempt->step = Step::kCompile;
  // Copies the inputs whose contents are in the key: the function may read them again during the
  // run, and is valid for these contents only.
  std::optional<Snapshot> copies;
  std::optional<NgraphIO> frozen;
  if (const auto& copied = graph_.copied_inputs(); !copied.empty()) {
    const WorkSpan span(WorkKind::kCopy);
    copies.emplace(given.inputs, copied, std::vector<size_t>{});
    frozen = given;
    for (size_t input : copied) frozen->inputs[input] = copies->inputs()[input];
  }
  const NgraphIO& io = frozen ? *frozen : given;
  // The current epoch, before the fingerprint of the weights is computed: later writes are
  // detected.
  const Epoch since = Epoch::now();
  const auto has_run = [&](const NgraphFunction& function) {
    // Begins here, since the function's weights and spare tensors have locks, too.
    const OpenVinoUse use;
    WeightsInPlace::Run reading(function, functions_.weights(), io.inputs, since);
    if (!reading.has_started()) return false;
    function.run(io);
    reading.has_computed();
    return true;
  };
  const auto has_function = [&](Lookup found) {
    if (found.job == nullptr) found.job = std::move(attempt->found.job);
    attempt->found = std::move(found);
    return attempt->found.function != nullptr;
  };
  const Concurrency::Run run(sharing_.concurrency());
  while (true) {
    attempt->step = Step::kCompile;
    if (!has_function(find_or_build(io, settings, run, missing))) return;
    const auto& function = attempt->found.function;
    attempt->step = Step::kRun;
    try {
      if (has_run(*function)) break;
      attempt->found.function.reset();  // frees the outdated function before the next one is built
    } catch (const PartialWrite&) {
      throw;
    } catch (const InvalidInput&) {
      throw;
    } catch (const std::exception&) {
      if (!function->is_symbolic()) {
        if (function->has_dynamic_dims()) functions_.drop();
        throw;
      }
      // The function with symbolic sizes has failed before anything was written: runs a function
      // for exactly these sizes instead.
      functions_.disable_symbolic_sizes();
      while (has_function(find_or_build(io, settings, nullptr, MissingFunction::kWait)) &&
             !has_run(*attempt->found.function)) {
        attempt->found.function.reset();
      }
      if (attempt->found.function == nullptr) return;
      break;
    }
  }
}

Reason NgraphEngine::run_fallback_without_compiling(const NgraphIO& io, const Settings& settings) {
  if (fallback_.try_run(io)) return Reason::kRareShape;
  functions_.mark_frequent(io, settings);
  return run(io, MissingFunction::kWait);
}

Reason NgraphEngine::run_fallback_while_compiling(const NgraphIO& io,
                                                  std::shared_ptr<CompileJob>* job) {
  const auto start = std::chrono::steady_clock::now();
  // If Paddle fails, the engine may succeed; if the engine fails too, its fallback raises Paddle's
  // error again.
  if (!fallback_.try_run(io)) {
    job->reset();
    return run(io, MissingFunction::kWait);
  }
  if (*job != nullptr) (*job)->note_fallback_succeeded();
  const auto time = std::chrono::steady_clock::now() - start;
  background_.note_fallback_run(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  return Reason::kCompiling;
}

}  // namespace paddle_ngraph
