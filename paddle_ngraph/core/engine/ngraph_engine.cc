#include "core/engine/ngraph_engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <sstream>

#include <pthread.h>

#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/include/api.h"

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/threads.h"
#include "core/engine/compile_job.h"
#include "core/engine/engines.h"
#include "core/engine/model_builder.h"
#include "core/engine/partial_write.h"
#include "core/engine/stored_function.h"
#include "core/ov/trim_memory.h"
#include "core/paddle/flags.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/tensors.h"

COMMON_DECLARE_bool(check_nan_inf);  // a flag of Paddle

namespace paddle_ngraph {

namespace {

// After this number of runs in a row whose integers overflow int32 in the engine, the operator that
// computes them permanently falls back to Paddle.
constexpr int kMaxOverflowRuns = 8;

// `key` describes `num_inputs` inputs, followed by the contents of inputs that are read by value.
SymbolicSignature symbolic_signature(const Signature& key, size_t num_inputs,
                                     const BuiltFunction& built) {
  SymbolicSignature symbolic{key, std::vector<int>(key.words.size(), SymbolicSignature::kFixed),
                             built.guards};
  size_t number = 0, word = 0;
  const auto next_symbol = [&] { symbolic.symbols.at(word++) = built.symbolic_dims.at(number++); };
  for (size_t input = 0; input < num_inputs; ++input) {
    const int64_t rank = key.words.at(word + 1);
    word += 2;
    for (int64_t i = 0; i < rank; ++i) next_symbol();
  }
  while (number < built.symbolic_dims.size()) next_symbol();
  return symbolic;
}

// Whether the flag permits builds in the background.
bool may_compile_in_background() {
  const std::string& when = FLAGS_ngraph_background_compile;
  if (when == "0" || when == "auto" || when == "1") return when != "0";
  throw InvalidInput(concat("FLAGS_ngraph_background_compile=", when, ": use auto, 1 or 0"));
}

// Locked while a function of a graph is built. Recursive: a signal handler may run the same program
// during the build in Python, and builds the function too.
using BuildingMutex = std::recursive_mutex;

std::array<BuildingMutex, 64> building_mutexes;

// A forked process lacks the threads that would unlock mutexes locked at the fork.
void renew_building_mutexes() {
  for (auto& mutex : building_mutexes) new (&mutex) BuildingMutex();
}

BuildingMutex& building_mutex(uint64_t graph) {
  static const int registered = pthread_atfork(nullptr, nullptr, renew_building_mutexes);
  static_cast<void>(registered);
  return building_mutexes[graph % building_mutexes.size()];
}

const std::vector<size_t>& empty_indices() {
  static const std::vector<size_t> none;
  return none;
}

// The message of a failure, with its code and operator if it is an error of the plugin.
NgraphError as_ngraph_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const NgraphError& error) {
    return error;
  } catch (const std::exception& error) {
    return NgraphError(error.what());
  }
}

// Whether a function stored under this key is valid for it.
bool is_for(const BuiltFunction& built, const Signature& key, size_t num_inputs) {
  return !built.is_symbolic() || symbolic_signature(key, num_inputs, built).fits(key);
}

}  // namespace

std::shared_ptr<NgraphEngine> NgraphEngine::of(const std::string& graph) {
  return Engines::instance().of(graph);
}

NgraphEngine::~NgraphEngine() { FunctionCache::instance().drop(graph_.id()); }

NgraphEngine::NgraphEngine(std::string graph)
    : graph_(std::move(graph)), weights_(header().weights, header().has_eager_weights) {
  shares_threads_ =
      header().has_frozen_weights() && header().num_states == 0 && header().is_on_cpu();
}

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

// Paddle's check for NaN reads the device of all outputs, including unused outputs of the operator.
void NgraphEngine::allocate_spare_outputs(paddle::CustomOpKernelContext* context) const {
  const auto nothing = paddle::empty({0}, paddle::DataType::FLOAT32, paddle::CPUPlace());
  for (size_t i = header().num_outputs; i + 1 < context->OutputRange().size(); ++i) {
    dense(*context->MutableOutputAt(i))->ShareDataWith(*dense(nothing));
  }
}

void NgraphEngine::require_outputs(const paddle::CustomOpKernelContext& context) const {
  const auto& ranges = context.OutputRange();  // one per output, and one for all states
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

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io) const {
  const Lookup found = find_or_build(io, settings(), nullptr, MissingFunction::kWait);
  if (found.is_skipped) {
    throw NgraphError("shapes that come too seldom for a function of their own");
  }
  return found.function;
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_function(const NgraphIO& io,
                                                            const Settings& now) const {
  Signature key = graph_.signature(io.inputs, now);
  key.weights = weights_.fingerprint(io.inputs);
  auto function = find_within_capacity(&key, io);
  if (function) ++EngineStats::instance().functions_reused;
  return function;
}

bool NgraphEngine::is_valid_for(const NgraphFunction& function, const NgraphIO& io) const {
  const auto* const in_place = function.weights_in_place();
  return in_place == nullptr || in_place->is_valid_for(weights_, io.inputs);
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_valid(const Signature& key, const NgraphIO& io,
                                                         bool is_retry) const {
  auto& cache = FunctionCache::instance();
  auto function = cache.find(key, is_retry);
  if (!function || is_valid_for(*function, io)) return function;
  copied_weights_version_ = denylist_version().load();
  shapes_.forget(key);
  cache.drop(*function);
  return nullptr;
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_within_capacity(Signature* key,
                                                                   const NgraphIO& io) const {
  const auto& cache = FunctionCache::instance();
  const bool was_evicted = cache.was_evicted_for_capacity(*key);
  auto function = find_valid(*key, io, was_evicted);
  if (function || !was_evicted || cache.has_capacity_for(weights_.num_bytes(io.inputs))) {
    return function;
  }
  key->weights.reset();
  return find_valid(*key, io);
}

NgraphEngine::Lookup NgraphEngine::find_or_build(const NgraphIO& io, const Settings& settings,
                                                 const Concurrency::Run& run,
                                                 MissingFunction missing) const {
  const Settings shared = shared_settings(settings, run);
  if (shared.streams == settings.streams) return find_or_build(io, settings, nullptr, missing);
  if (!run.is_alone()) {
    if (auto function = find_function(io, shared)) return {std::move(function)};
  }
  const auto unshared = find_function(io, settings);
  if (unshared && (run.is_alone() || unshared->has_little_to_do())) return {unshared};
  try {
    Lookup found = find_or_build(io, shared, &settings, missing);
    if (found.function == nullptr) {
      return unshared ? Lookup{unshared, false, std::move(found.job)} : std::move(found);
    }
    // With capacity for only one of the two, they would evict each other alternately.
    if (unshared && !find_function(io, settings)) shares_threads_ = false;
    return found;
  } catch (const InvalidInput&) {  // the unshared function shows whether the input is the cause
  } catch (const std::exception&) {
    shares_threads_ = false;
  }
  return find_or_build(io, settings, nullptr, missing);
}

// Settings of a function for overlapping runs: each run has as many threads as a single run, while
// there are enough cores.
Settings NgraphEngine::shared_settings(const Settings& settings,
                                       const Concurrency::Run& run) const {
  if (!shares_threads_ || settings.streams > 1 || run.streams(2) == 1) return settings;
  const int each = threads_of(settings), most = std::max(each, usable_cores());
  Settings shared = settings;
  shared.streams = run.streams(most);
  if (const int64_t all = int64_t{each} * shared.streams; each < most) {
    shared.num_threads = static_cast<int>(std::min<int64_t>(all, most));
  }
  return shared;
}

NgraphEngine::Lookup NgraphEngine::find_or_build(const NgraphIO& io, const Settings& now,
                                                 const Settings* settings_if_building,
                                                 MissingFunction missing) const {
  const Epoch since = Epoch::now();
  Signature key = graph_.signature(io.inputs, now);
  key.weights = weights_.fingerprint(io.inputs);
  auto& cache = FunctionCache::instance();
  if (const auto outdated = weights_.take_outdated()) {
    cache.drop(graph_.id(), *outdated);
    shapes_.forget_built();
  }
  if (auto function = find_within_capacity(&key, io)) {
    ++EngineStats::instance().functions_reused;
    return {std::move(function)};
  }
  if (pending_job_ != nullptr) {
    if (missing == MissingFunction::kMayFallBack) return {};
    wait_for_compile_jobs();
  }
  // One build per graph at a time: another thread may be building the same function, or one from
  // the same model.
  std::unique_lock<BuildingMutex> lock(building_mutex(graph_.id()), std::try_to_lock);
  if (!lock.owns_lock()) {
    if (settings_if_building) return find_or_build(io, *settings_if_building, nullptr, missing);
    lock.lock();
  }
  if (pending_job_ != nullptr) {  // submitted by another thread in the meantime
    if (missing == MissingFunction::kMayFallBack) return {};
    wait_for_compile_jobs();
  }
  // Another thread may have cached the function in the meantime, however short the wait was;
  // without this lookup, should_skip_compile() would treat the function as built and evicted.
  if (auto function = find_valid(key, io, true)) return {std::move(function)};
  const bool constant_weights = key.weights.has_value();
  if (missing == MissingFunction::kMayFallBack) {
    const size_t bytes = constant_weights ? weights_.num_bytes(io.inputs) : 0;
    const bool is_full = !CompileJob::has_capacity_for(bytes);
    if (is_full && should_compile_in_background(graph(), io.inputs, min_fallback_us_)) return {};
    if (is_full) missing = MissingFunction::kWait;
  }
  if (should_skip_compile(key, now)) return {nullptr, /*is_skipped=*/true};
  bool in_place = constant_weights && header().is_on_cpu() && !collection_.is_active() &&
                  copied_weights_version_ != denylist_version() &&
                  weights_.are_untouched_since(since, io.inputs);
  for (bool is_first = true;; is_first = false) {
    std::optional<Variables> variables;
    if (in_place) variables.emplace(io.inputs, since, weights_);
    auto frozen = std::make_shared<const Snapshot>(snapshot(io.inputs, constant_weights, in_place));
    // The memory in the snapshot is pinned, unless the variables got other memory in between.
    if (in_place && !weights_.are_untouched_since(since, io.inputs)) {
      in_place = false;
      continue;
    }
    const Signature wanted = std::exchange(key, graph_.signature(frozen->inputs(), now));
    key.weights = wanted.weights;
    if (constant_weights && !in_place) key.weights = weights_.fingerprint_now(frozen->inputs());
    if (!is_first ||
        !(key == wanted)) {  // the function was built, or an input written, in the meantime
      if (auto function = find_valid(key, io, true)) return {std::move(function)};
    }
    failures_.rethrow(key);
    if (auto function = load(key, *frozen, now)) return {std::move(function)};
    const bool compiles_in_background =
        missing == MissingFunction::kMayFallBack && !collection_.is_active() &&
        should_compile_in_background(graph(), io.inputs, min_fallback_us_);
    if (compiles_in_background && !in_place) {
      return {nullptr, /*is_skipped=*/false,
              std::make_shared<CompileJob>(shared_from_this(), key, frozen, now)};
    }
    if (!compiles_in_background) {
      auto function =
          build_and_cache(key, *frozen, now, nullptr, variables ? &*variables : nullptr);
      if (function != nullptr && is_valid_for(*function, io)) return {std::move(function)};
    }
    in_place = false;
  }
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_ng_function(const NgraphIO& io) const {
  const bool constant_weights = weights_.fingerprint(io.inputs).has_value();
  return wrap(build(snapshot(io.inputs, constant_weights), constant_weights, settings()));
}

Snapshot NgraphEngine::snapshot(const Inputs& inputs, bool constant_weights, bool in_place) const {
  return {inputs, header().value_inputs, constant_weights ? weights_.inputs() : empty_indices(),
          in_place};
}

std::shared_ptr<NgraphFunction> NgraphEngine::load(const Signature& key, const Snapshot& snapshot,
                                                   const Settings& settings) const {
  const auto on_disk = disk_key(key, settings);
  if (!on_disk || collection_.is_active()) return nullptr;
  auto loaded = load_function(*on_disk);
  if (!loaded || !is_for(*loaded, key, header().num_inputs)) return nullptr;
  ++EngineStats::instance().functions_loaded;
  if (key.weights.has_value()) ++EngineStats::instance().functions_with_weights;
  remember_shapes(graph(), snapshot.inputs(), header().value_inputs,
                  loaded->function->settings().parts);
  return add_to_cache(key, snapshot, std::move(*loaded));
}

bool NgraphEngine::should_skip_compile(const Signature& key, const Settings& settings) const {
  if (FLAGS_ngraph_strict || collection_.is_active()) return false;
  const auto frequency = shapes_.count_miss(key);
  if (frequency == ShapeStatistics::Frequency::kFrequent) return false;
  if (!may_skip_compile(graph())) return false;
  if (frequency == ShapeStatistics::Frequency::kSeldom) return true;
  const auto on_disk = disk_key(key, settings);
  return !on_disk || !find_file(*on_disk);
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_and_cache(const Signature& key,
                                                              const Snapshot& snapshot,
                                                              const Settings& settings,
                                                              const std::atomic<bool>* is_active,
                                                              Variables* in_place) const {
  const auto on_disk = disk_key(key, settings);
  const auto start = std::chrono::steady_clock::now();
  BuiltFunction built = build(snapshot, key.weights.has_value(), settings);
  const auto time = std::chrono::steady_clock::now() - start;
  const auto is_valid = [&] {
    return in_place == nullptr || weights_.are_untouched_since(in_place->since, in_place->inputs);
  };
  const std::chrono::milliseconds least(FLAGS_ngraph_cache_min_ms);
  if (!collection_.add(on_disk, built, is_valid) && on_disk && time >= least) {
    store_function(*on_disk, built, is_valid);
  }
  if (in_place != nullptr) in_place->pin.reset();
  trim_free_memory();
  if (!is_valid()) return nullptr;
  return add_to_cache(key, snapshot, std::move(built), is_active, in_place);
}

std::shared_ptr<NgraphFunction> NgraphEngine::add_to_cache(const Signature& key,
                                                           const Snapshot& snapshot,
                                                           BuiltFunction built,
                                                           const std::atomic<bool>* is_active,
                                                           const Variables* in_place) const {
  std::optional<SymbolicSignature> symbolic;
  if (built.is_symbolic()) {
    symbolic = symbolic_signature(key, header().num_inputs, built);
  } else {
    shapes_.count_function(key);
  }
  size_t bytes = key.weights.has_value() ? weights_.num_bytes(snapshot.inputs()) : 0;
  if (built.function->settings().remainder() > 0)
    bytes *= 2;  // the model of the remainder is compiled too
  auto function = wrap(std::move(built));
  if (in_place != nullptr) {
    function->use_weights_in_place(std::make_unique<WeightsInPlace>(weights_, in_place->inputs));
    ++EngineStats::instance().functions_with_weights_in_place;
  }
  return FunctionCache::instance().insert(key, std::move(function), bytes, std::move(symbolic),
                                          is_active);
}

void NgraphEngine::begin_collection(const std::string& folder) {
  collection_.begin(folder);
  FunctionCache::instance().drop(graph_.id());
}

std::optional<DiskKey> NgraphEngine::disk_key(const Signature& key,
                                              const Settings& settings) const {
  if (!has_cache_folder() && !collection_.is_active()) return std::nullopt;
  const std::string environment = build_environment(graph(), settings);
  if (environment.empty()) return std::nullopt;
  std::ostringstream instance;
  if (dynamic_shapes_disabled_) instance << "closed ";
  if (key.weights) instance << "weights " << *key.weights << ' ';
  for (int64_t word : key.words) instance << word << ' ';
  return DiskKey{disk_key_of_graph(graph(), environment), instance.str()};
}

BuiltFunction NgraphEngine::build(const Snapshot& snapshot, bool constant_weights,
                                  const Settings& settings) const {
  BuiltFunction built = build_function(graph(), snapshot.inputs(), header().value_inputs,
                                       constant_weights ? weights_.inputs() : empty_indices(),
                                       snapshot.copies(), settings);
  ++EngineStats::instance().functions_built;
  if (constant_weights) ++EngineStats::instance().functions_with_weights;
  return built;
}

std::shared_ptr<NgraphFunction> NgraphEngine::wrap(BuiltFunction built) const {
  return std::make_shared<NgraphFunction>(std::move(built), header().num_outputs,
                                          header().num_states, spare_tensors());
}

std::shared_ptr<SpareTensors> NgraphEngine::spare_tensors() const {
  std::lock_guard<std::mutex> lock(spare_tensors_mutex_);
  auto shared = spare_tensors_.lock();
  if (shared == nullptr) spare_tensors_ = shared = std::make_shared<SpareTensors>();
  return shared;
}

void NgraphEngine::run(const NgraphIO& io) const {
  run(io, may_compile_in_background() ? MissingFunction::kMayFallBack : MissingFunction::kWait);
}

void NgraphEngine::run(const NgraphIO& io, MissingFunction missing) const {
  const Settings now = settings();
  Progress progress;
  if (FLAGS_ngraph_strict) {
    run_function(io, now, MissingFunction::kWait, &progress);
    if (progress.found.is_skipped) return run(io, missing);  // the flag was changed in the meantime
    return;
  }
  if (denied_at_ == denylist_version()) return run_fallback(io);
  if (FLAGS_check_nan_inf) {  // a check for NaN must find the operator that produces it
    try {
      return run_fallback(io);
    } catch (const NgraphError&) {  // the fallback is unavailable
    }
  }
  bool is_deniable = false;  // whether something other than the data may have caused the failure
  std::exception_ptr failure;
  try {
    run_function(io, now, missing, &progress);
  } catch (const PartialWrite&) {
    throw;
  } catch (const std::bad_alloc&) {
    failure = std::current_exception();
  } catch (const InvalidInput& error) {
    if (error.code() == ErrorCode::kOutOfBounds) throw;
    failure = std::current_exception();
    is_deniable = progress.step == Step::kCompile;
  } catch (const std::exception&) {
    failure = std::current_exception();
    is_deniable = progress.step != Step::kData;
  }
  Lookup& found = progress.found;
  if (failure != nullptr) {
    found.function.reset();  // not retained during the fallback
    run_fallback_after_failure(io, failure, is_deniable);
  } else if (found.is_skipped) {
    run_fallback_without_compiling(io, now);
  } else if (found.function == nullptr) {
    found.job = run_fallback_while_compiling(io, std::move(found.job));
  } else {
    overflow_runs_ = 0;
  }
  if (found.job == nullptr) return;
  // The job is submitted after the run: during the run, Python creates the fallback program of the
  // subgraph.
  try {
    submit_compile_job(found.job);
  } catch (const std::exception&) {  // the next run submits another job
  }
}

void NgraphEngine::run_function(const NgraphIO& given, const Settings& settings,
                                MissingFunction missing, Progress* progress) const {
  inject_fault(progress->step = Step::kData);
  graph_.require_valid(given.inputs);
  progress->step = Step::kCompile;
  // Inputs in the key are copied: the function may read them again and is valid for these contents
  // only.
  std::optional<Snapshot> copies;
  std::optional<NgraphIO> frozen;
  if (!graph_.copied_inputs().empty()) {
    copies.emplace(given.inputs, graph_.copied_inputs(), empty_indices());
    frozen = given;
    for (size_t input : graph_.copied_inputs()) frozen->inputs[input] = copies->inputs()[input];
  }
  const NgraphIO& io = frozen ? *frozen : given;
  const Epoch since = Epoch::now();  // before the fingerprint is computed
  const auto has_run = [&](const NgraphFunction& function) {
    WeightsInPlace::Run reading(function, weights_, io.inputs, since);
    if (!reading.has_started()) return false;
    function.run(io);
    reading.has_computed();
    return true;
  };
  const auto has_function = [&](Lookup found) {
    if (found.job == nullptr) found.job = std::move(progress->found.job);
    progress->found = std::move(found);
    return progress->found.function != nullptr;
  };
  const Concurrency::Run run(&concurrency_);
  while (true) {
    progress->step = Step::kCompile;
    if (!has_function(find_or_build(io, settings, run, missing))) return;
    const auto& function = progress->found.function;
    progress->step = Step::kRun;
    try {
      if (has_run(*function)) break;
    } catch (const PartialWrite&) {
      throw;
    } catch (const InvalidInput&) {
      throw;
    } catch (const std::exception&) {
      if (!function->is_symbolic()) {
        if (function->has_dynamic_dims()) FunctionCache::instance().drop(graph_.id());
        throw;
      }
      // Nothing has been written yet; a function for exactly these sizes may work.
      disable_dynamic_shapes(graph());
      dynamic_shapes_disabled_ = true;
      FunctionCache::instance().drop_symbolic(graph_.id());
      do {
        if (!has_function(find_or_build(io, settings, nullptr, MissingFunction::kWait))) return;
      } while (!has_run(*progress->found.function));
      break;
    }
  }
  ++EngineStats::instance().engine_runs;
}

void NgraphEngine::run_fallback(const NgraphIO& io) const {
  paddle_ngraph::run_fallback(graph(), io);
  ++EngineStats::instance().native_runs;
}

bool NgraphEngine::try_fallback(const NgraphIO& io) const {
  StreamGuard stream(header().num_states == 0);
  try {
    run_fallback(io);
    stream.used();
    return true;
  } catch (const NgraphError&) {     // the fallback is unavailable
  } catch (const std::exception&) {  // states that were written keep their new values
    if (header().num_states > 0) throw;
  }
  return false;
}

void NgraphEngine::run_fallback_without_compiling(const NgraphIO& io,
                                                  const Settings& settings) const {
  if (try_fallback(io)) return;
  shapes_.mark_frequent(graph_.signature(io.inputs, settings));
  run(io, MissingFunction::kWait);
}

std::shared_ptr<CompileJob> NgraphEngine::run_fallback_while_compiling(
    const NgraphIO& io, std::shared_ptr<CompileJob> job) const {
  const auto start = std::chrono::steady_clock::now();
  if (!try_fallback(io)) {  // the engine may succeed; if not, Paddle's error is raised again
    job.reset();
    run(io, MissingFunction::kWait);
    return nullptr;
  }
  if (job != nullptr) job->note_fallback_succeeded();
  const auto time = std::chrono::steady_clock::now() - start;
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const int64_t least = min_fallback_us_;
  if (least == 0 || us < least) min_fallback_us_ = std::max<int64_t>(us, 1);
  ++fallback_runs_;
  ++EngineStats::instance().runs_while_compiling;
  return job;
}

void NgraphEngine::run_fallback_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                              bool is_deniable) const {
  const uint64_t version = denylist_version();
  const NgraphError error = as_ngraph_error(failure);
  const bool is_overflow = error.code() == ErrorCode::kInt32Overflow;
  try {
    run_fallback(io);
  } catch (const NgraphError&) {  // the fallback is unavailable
    clear_failure(graph());
    std::rethrow_exception(failure);
  } catch (...) {
    clear_failure(graph());
    throw;
  }
  if (is_overflow && ++overflow_runs_ < kMaxOverflowRuns) return clear_failure(graph());
  if (is_overflow) {
    overflow_runs_ = 0;
    deny_graph(graph(), error);
    denied_at_ = version;
    return;
  }
  if (!is_deniable) return;
  // A failure with an empty tensor does not apply to other sizes.
  if (creates_empty_tensor(graph(), io)) return clear_failure(graph());
  deny_graph(graph(), error);
  denied_at_ = version;
}

}  // namespace paddle_ngraph
