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

// Throws InvalidInput unless the tensor has memory and no LoD, as functions require.
void require_plain(const phi::DenseTensor& tensor, size_t input) {
  const bool has_shape = tensor.dims().size() >= 0;
  if (!has_shape || (!tensor.initialized() && tensor.numel() != 0)) {
    throw InvalidInput(
        concat("input ", input, " is not initialized; run the startup program first"));
  }
  if (!tensor.lod().empty()) {
    throw InvalidInput(concat("input ", input, " of the interval carries a LoD"));
  }
}

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

// The first kMaxStaticShapes shapes of a graph get a function at their first run. Further shapes,
// as in a Paddle loop whose subgraph has another shape in each iteration, must occur once per
// kFunctionsPerMiss functions built so far.
constexpr size_t kMaxStaticShapes = 16;
constexpr size_t kFunctionsPerMiss = 4;

// Number of words at the end of a signature for the settings that differ between functions of a
// graph.
constexpr size_t kSettingsWords = 3;

// Maximum number of shapes with statistics.
constexpr size_t kMaxTrackedShapes = 4096;

// Thrown for a run whose function is not worth a build yet; the run falls back to Paddle.
class CompileSkipped : public NgraphError {
 public:
  CompileSkipped() : NgraphError("shapes that come too seldom for a function of their own") {}
};

// Hash of a signature without the weights and the settings.
uint64_t shape_hash(Signature key) {
  key.weights.reset();
  key.words.resize(key.words.size() - kSettingsWords);
  return SignatureHash()(key);
}

// Maximum number of failures of background builds that are retained until a run rethrows them.
constexpr size_t kMaxFailures = 16;

// Whether the flag permits builds in the background.
bool may_compile_in_background() {
  const std::string& when = FLAGS_ngraph_background_compile;
  if (when == "0" || when == "auto" || when == "1") return when != "0";
  throw InvalidInput(concat("FLAGS_ngraph_background_compile=", when, ": use auto, 1 or 0"));
}

// Flag values, in the order of enum Precision.
constexpr std::array<const char*, 3> kPrecisions = {"f32", "bf16", "f16"};

Precision wanted_precision() {
  const std::string& wanted = FLAGS_ngraph_precision;
  const auto* const found = std::find(kPrecisions.begin(), kPrecisions.end(), wanted);
  if (found == kPrecisions.end()) {
    throw InvalidInput(concat("FLAGS_ngraph_precision=", wanted, ": use f32, bf16 or f16"));
  }
  return static_cast<Precision>(found - kPrecisions.begin());
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

// Appends one word per element: its value, or the bits of a floating-point value.
void append_values(const phi::DenseTensor& tensor, std::vector<int64_t>* words) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (count == 0) return;
  const auto* number = static_cast<const char*>(tensor.data());
  const size_t size = num_bytes(tensor) / count;
  for (size_t i = 0; i < count; ++i, number += size) {
    int64_t& word = words->emplace_back(0);
    if (tensor.dtype() == paddle::DataType::INT32) {
      word = *reinterpret_cast<const int32_t*>(number);
    } else {
      std::memcpy(&word, number, std::min(size, sizeof(word)));
    }
  }
}

}  // namespace

std::shared_ptr<NgraphEngine> NgraphEngine::of(const std::string& graph) {
  return Engines::instance().of(graph);
}

NgraphEngine::~NgraphEngine() { FunctionCache::instance().drop(id_); }

NgraphEngine::NgraphEngine(std::string graph)
    : graph_(std::move(graph)),
      header_(read_header(graph_)),
      weights_(header_.weights, header_.has_eager_weights) {
  static std::atomic<uint64_t> count{0};
  id_ = ++count;
  const auto is_only_read = [&](size_t input) { return input < header_.num_read_only(); };
  std::copy_if(header_.value_inputs.begin(), header_.value_inputs.end(),
               std::back_inserter(copied_inputs_), is_only_read);
  // Weights become constants only if no program of the run writes them.
  has_frozen_weights_ = !header_.weights.empty() && !header_.trains;
  shares_threads_ = has_frozen_weights_ && header_.num_states == 0 && header_.is_on_cpu();
}

NgraphIO NgraphEngine::build_ng_io(paddle::CustomOpKernelContext* context) const {
  NgraphIO io;
  io.inputs.reserve(header_.num_inputs);
  for (size_t slot = 0; slot < context->InputRange().size(); ++slot) {
    const auto range = context->InputRangeAt(slot);
    for (size_t i = range.first; i < range.second; ++i) {
      auto* tensor = dense(context->InputAt(i));
      if (tensor == nullptr) continue;
      io.append_input(tensor, io.inputs.size() >= header_.num_read_only());
    }
  }
  require_inputs(io.inputs.size());
  require_outputs(*context);
  for (size_t i = 0; i < header_.num_outputs; ++i) {
    io.outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  if (FLAGS_check_nan_inf) allocate_spare_outputs(context);
  io.num_states = header_.num_states;
  if (header_.num_states == 0) return io;
  const auto states = context->OutputRangeAt(context->OutputRange().size() - 1);
  for (size_t i = states.first; i < states.second; ++i) {
    io.state_outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  return io;
}

// Paddle's check for NaN reads the device of all outputs, including unused outputs of the operator.
void NgraphEngine::allocate_spare_outputs(paddle::CustomOpKernelContext* context) const {
  const auto nothing = paddle::empty({0}, paddle::DataType::FLOAT32, paddle::CPUPlace());
  for (size_t i = header_.num_outputs; i + 1 < context->OutputRange().size(); ++i) {
    dense(*context->MutableOutputAt(i))->ShareDataWith(*dense(nothing));
  }
}

void NgraphEngine::require_inputs(size_t given) const {
  if (given == header_.num_inputs) return;
  throw NgraphError(
      concat("the operator got ", given, " tensors, but its graph names ", header_.num_inputs));
}

void NgraphEngine::require_outputs(const paddle::CustomOpKernelContext& context) const {
  const auto& ranges = context.OutputRange();  // one per output, and one for all states
  const auto& states = ranges.back();
  const bool fits = header_.num_outputs < ranges.size() &&
                    (header_.num_states == 0 || states.second - states.first == header_.num_states);
  if (fits) return;
  throw NgraphError(concat("the operator has room for ", ranges.size() - 1, " outputs and ",
                           states.second - states.first, " states, but its graph names ",
                           header_.num_outputs, " and ", header_.num_states));
}

Signature NgraphEngine::signature(const Inputs& inputs, const Settings& settings) const {
  Signature signature;
  signature.graph = id_;
  signature.words.reserve(inputs.size() * 5);
  for (const auto* tensor : inputs) {
    const auto& dims = tensor->dims();
    signature.words.push_back(static_cast<int64_t>(tensor->dtype()));
    signature.words.push_back(dims.size());
    for (int i = 0; i < dims.size(); ++i) signature.words.push_back(dims[i]);
  }
  for (size_t input : header_.value_inputs) append_values(*inputs[input], &signature.words);
  const std::array<int64_t, kSettingsWords> last = {settings.num_threads, settings.streams,
                                                    static_cast<int64_t>(settings.precision)};
  signature.words.insert(signature.words.end(), last.begin(), last.end());
  return signature;
}

int threads_of(const Settings& settings) {
  return settings.num_threads > 0 ? settings.num_threads : num_threads();
}

const char* name_of(Precision precision) { return kPrecisions.at(static_cast<size_t>(precision)); }

Settings NgraphEngine::settings() const {
  const Precision precision = wanted_precision();
  Settings settings;
  if (!header_.is_on_cpu()) {
    settings.num_threads = 1;
    // Gradients would underflow in float16.
    if (precision == Precision::kFloat16 && has_frozen_weights_) settings.precision = precision;
    return settings;
  }
  if (precision == Precision::kBfloat16) settings.precision = precision;
  settings.num_threads = engine_threads();
  if (header_.max_threads == 0) return settings;
  const int64_t most = num_threads(),
                wanted = int64_t{header_.max_threads} * header_.concurrent_runs;
  if (wanted < most) settings.num_threads = static_cast<int>(wanted);
  settings.streams =
      static_cast<int>(std::min<int64_t>(header_.concurrent_runs, std::min(wanted, most)));
  settings.concurrent_runs = settings.streams;
  return settings;
}

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io) const {
  return get_ng_function(io, settings(), nullptr, nullptr);
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_function(const NgraphIO& io,
                                                            const Settings& now) const {
  Signature key = signature(io.inputs, now);
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
  {
    std::lock_guard<std::mutex> lock(static_functions_mutex_);
    StaticFunctions& statistics = static_functions();
    statistics.built.erase(SignatureHash()(key));
    statistics.misses[shape_hash(key)] = statistics.count;  // treated as frequent: built again
  }
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

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io,
                                                              const Settings& settings,
                                                              const Concurrency::Run& run,
                                                              JobPtr* job) const {
  const Settings shared = shared_settings(settings, run);
  if (shared.streams == settings.streams) return get_ng_function(io, settings, nullptr, job);
  if (!run.is_alone()) {
    if (auto function = find_function(io, shared)) return function;
  }
  const auto unshared = find_function(io, settings);
  if (unshared && (run.is_alone() || unshared->has_little_to_do())) return unshared;
  try {
    auto function = get_ng_function(io, shared, &settings, job);
    if (function == nullptr) return unshared;  // the function is built in the background
    // With capacity for only one of the two, they would evict each other alternately.
    if (unshared && !find_function(io, settings)) shares_threads_ = false;
    return function;
  } catch (const CompileSkipped&) {
    if (unshared) return unshared;
    throw;
  } catch (const InvalidInput&) {  // the unshared function shows whether the input is the cause
  } catch (const std::exception&) {
    shares_threads_ = false;
  }
  return get_ng_function(io, settings, nullptr, job);
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

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io,
                                                              const Settings& now,
                                                              const Settings* settings_if_building,
                                                              JobPtr* job) const {
  const Epoch since = Epoch::now();
  Signature key = signature(io.inputs, now);
  key.weights = weights_.fingerprint(io.inputs);
  auto& cache = FunctionCache::instance();
  if (const auto outdated = weights_.take_outdated()) {
    cache.drop(id_, *outdated);
    std::lock_guard<std::mutex> lock(static_functions_mutex_);
    static_functions().built.clear();  // none of these was evicted for lack of capacity
  }
  if (auto function = find_within_capacity(&key, io)) {
    ++EngineStats::instance().functions_reused;
    return function;
  }
  if (pending_job_ != nullptr) {
    if (job != nullptr) return nullptr;
    wait_for_compile_jobs();
  }
  // One build per graph at a time: another thread may be building the same function, or one from
  // the same model.
  std::unique_lock<BuildingMutex> lock(building_mutex(id_), std::try_to_lock);
  if (!lock.owns_lock()) {
    if (settings_if_building) return get_ng_function(io, *settings_if_building, nullptr, job);
    lock.lock();
  }
  if (pending_job_ != nullptr) {  // submitted by another thread in the meantime
    if (job != nullptr) return nullptr;
    wait_for_compile_jobs();
  }
  // Another thread may have cached the function in the meantime, however short the wait was;
  // without this lookup, should_skip_compile() would treat the function as built and evicted.
  if (auto function = find_valid(key, io, true)) return function;
  const bool constant_weights = key.weights.has_value();
  if (job != nullptr) {
    const size_t bytes = constant_weights ? weights_.num_bytes(io.inputs) : 0;
    const bool is_full = !CompileJob::has_capacity_for(bytes);
    if (is_full && should_compile_in_background(graph_, io.inputs, min_fallback_us_))
      return nullptr;
    if (is_full) job = nullptr;
  }
  if (should_skip_compile(key, now)) throw CompileSkipped();
  bool in_place = constant_weights && header_.is_on_cpu() && !is_collecting() &&
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
    const Signature wanted = std::exchange(key, signature(frozen->inputs(), now));
    key.weights = wanted.weights;
    if (constant_weights && !in_place) key.weights = weights_.fingerprint_now(frozen->inputs());
    if (!is_first ||
        !(key == wanted)) {  // the function was built, or an input written, in the meantime
      if (auto function = find_valid(key, io, true)) return function;
    }
    rethrow_failure(key);
    if (auto function = load(key, *frozen, now)) return function;
    const bool compiles_in_background =
        job != nullptr && !is_collecting() &&
        should_compile_in_background(graph_, io.inputs, min_fallback_us_);
    if (compiles_in_background && !in_place) {
      *job = std::make_shared<CompileJob>(shared_from_this(), key, frozen, now);
      return nullptr;
    }
    if (!compiles_in_background) {
      auto function =
          build_and_cache(key, *frozen, now, nullptr, variables ? &*variables : nullptr);
      if (function != nullptr && is_valid_for(*function, io)) return function;
    }
    in_place = false;
  }
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_ng_function(const NgraphIO& io) const {
  const bool constant_weights = weights_.fingerprint(io.inputs).has_value();
  return wrap(build(snapshot(io.inputs, constant_weights), constant_weights, settings()));
}

Snapshot NgraphEngine::snapshot(const Inputs& inputs, bool constant_weights, bool in_place) const {
  return {inputs, header_.value_inputs, constant_weights ? weights_.inputs() : empty_indices(),
          in_place};
}

std::shared_ptr<NgraphFunction> NgraphEngine::load(const Signature& key, const Snapshot& snapshot,
                                                   const Settings& settings) const {
  const auto on_disk = disk_key(key, settings);
  if (!on_disk || is_collecting()) return nullptr;
  auto loaded = load_function(*on_disk);
  if (!loaded || !is_for(*loaded, key, header_.num_inputs)) return nullptr;
  ++EngineStats::instance().functions_loaded;
  if (key.weights.has_value()) ++EngineStats::instance().functions_with_weights;
  remember_shapes(graph_, snapshot.inputs(), header_.value_inputs,
                  loaded->function->settings().parts);
  return add_to_cache(key, snapshot, std::move(*loaded));
}

NgraphEngine::StaticFunctions& NgraphEngine::static_functions() const {
  if (static_functions_.version != denylist_version())
    static_functions_ = {denylist_version(), 0, {}, {}, {}};
  return static_functions_;
}

bool NgraphEngine::should_skip_compile(const Signature& key, const Settings& settings) const {
  if (FLAGS_ngraph_strict || is_collecting()) return false;
  bool is_new = false;  // in this process
  {
    std::lock_guard<std::mutex> lock(static_functions_mutex_);
    StaticFunctions& statistics = static_functions();
    // Also for shapes that had a function, since the cache may have capacity for fewer.
    const bool was_built = statistics.built.count(SignatureHash()(key)) > 0;
    if (statistics.first_shapes.size() < kMaxStaticShapes && !was_built) return false;
    const uint64_t shape = shape_hash(key);
    is_new = statistics.built.size() < kMaxTrackedShapes && !was_built;
    if (is_new && statistics.first_shapes.count(shape) > 0)
      return false;  // the shape has a function for other settings
    if (statistics.misses.size() >= kMaxTrackedShapes) statistics.misses.clear();
    if (++statistics.misses[shape] * kFunctionsPerMiss >= statistics.count) return false;
  }
  if (!may_skip_compile(graph_)) return false;
  if (!is_new) return true;  // possibly on disk, but evicted for lack of capacity
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
  if (!collect(on_disk, built, is_valid) && on_disk && time >= least) {
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
    symbolic = symbolic_signature(key, header_.num_inputs, built);
  } else {
    std::lock_guard<std::mutex> lock(static_functions_mutex_);
    StaticFunctions& statistics = static_functions();
    const uint64_t shape = shape_hash(key);
    ++statistics.count;
    statistics.misses.erase(shape);
    if (statistics.built.size() < kMaxTrackedShapes) statistics.built.insert(SignatureHash()(key));
    if (statistics.first_shapes.size() < kMaxStaticShapes) statistics.first_shapes.insert(shape);
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

void NgraphEngine::record_failure(const Signature& key, const std::exception_ptr& failure,
                                  bool is_for_all) const {
  std::lock_guard<std::mutex> lock(failures_mutex_);
  if (failures_.size() == kMaxFailures) failures_.erase(failures_.begin());
  failures_.push_back({key, failure, denylist_version(), is_for_all});
}

void NgraphEngine::rethrow_failure(const Signature& key) const {
  std::exception_ptr failure;
  {
    std::lock_guard<std::mutex> lock(failures_mutex_);
    const auto found = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& each) {
      return each.is_for_all || each.key == key;
    });
    if (found == failures_.end()) return;
    if (found->version == denylist_version()) failure = found->reason;
    failures_.erase(found);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void NgraphEngine::begin_collection(const std::string& folder) {
  {
    std::lock_guard<std::mutex> lock(collection_mutex_);
    if (!collection_.folder.empty()) {
      throw NgraphError("another thread saves a model of the same graph");
    }
    collection_ = {folder, {}};
  }
  FunctionCache::instance().drop(id_);
}

std::string NgraphEngine::end_collection() {
  std::lock_guard<std::mutex> lock(collection_mutex_);
  return std::exchange(collection_, {}).failure;
}

bool NgraphEngine::is_collecting() const {
  std::lock_guard<std::mutex> lock(collection_mutex_);
  return !collection_.folder.empty();
}

bool NgraphEngine::collect(const std::optional<DiskKey>& key, const BuiltFunction& built,
                           const std::function<bool()>& is_valid) const {
  std::lock_guard<std::mutex> lock(collection_mutex_);
  if (collection_.folder.empty()) return false;
  try {
    if (!key) throw NgraphError("it involves a converter from outside the package");
    store_function_in(collection_.folder, *key, built, is_valid);
  } catch (const std::exception& error) {  // the run itself goes on
    collection_.failure = error.what();
  }
  return true;
}

std::optional<DiskKey> NgraphEngine::disk_key(const Signature& key,
                                              const Settings& settings) const {
  if (!has_cache_folder() && !is_collecting()) return std::nullopt;
  const std::string environment = build_environment(graph_, settings);
  if (environment.empty()) return std::nullopt;
  std::ostringstream instance;
  if (dynamic_shapes_disabled_) instance << "closed ";
  if (key.weights) instance << "weights " << *key.weights << ' ';
  for (int64_t word : key.words) instance << word << ' ';
  return DiskKey{disk_key_of_graph(graph_, environment), instance.str()};
}

BuiltFunction NgraphEngine::build(const Snapshot& snapshot, bool constant_weights,
                                  const Settings& settings) const {
  BuiltFunction built = build_function(graph_, snapshot.inputs(), header_.value_inputs,
                                       constant_weights ? weights_.inputs() : empty_indices(),
                                       snapshot.copies(), settings);
  ++EngineStats::instance().functions_built;
  if (constant_weights) ++EngineStats::instance().functions_with_weights;
  return built;
}

std::shared_ptr<NgraphFunction> NgraphEngine::wrap(BuiltFunction built) const {
  return std::make_shared<NgraphFunction>(std::move(built), header_.num_outputs, header_.num_states,
                                          spare_tensors());
}

std::shared_ptr<SpareTensors> NgraphEngine::spare_tensors() const {
  std::lock_guard<std::mutex> lock(spare_tensors_mutex_);
  auto shared = spare_tensors_.lock();
  if (shared == nullptr) spare_tensors_ = shared = std::make_shared<SpareTensors>();
  return shared;
}

void NgraphEngine::run(const NgraphIO& io) const {
  if (!may_compile_in_background()) return run(io, nullptr);
  JobPtr job;
  run(io, &job);
  if (job == nullptr) return;
  // The job is submitted after the run: during the run, Python creates the fallback program of the
  // subgraph.
  try {
    submit_compile_job(job);
  } catch (const std::exception&) {  // the next run submits another job
  }
}

void NgraphEngine::run(const NgraphIO& io, JobPtr* job) const {
  const Settings now = settings();
  auto step = Step::kData;
  if (FLAGS_ngraph_strict) {
    try {
      run_function(io, now, nullptr, &step);
      return;
    } catch (const CompileSkipped&) {  // the flag was changed in the meantime
      return run(io, job);
    }
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
    if (run_function(io, now, job, &step)) {
      overflow_runs_ = 0;
      return;
    }
  } catch (const PartialWrite&) {
    throw;
  } catch (const std::bad_alloc&) {
    failure = std::current_exception();
  } catch (const CompileSkipped&) {
    return run_fallback_without_compiling(io, now);
  } catch (const InvalidInput& error) {
    if (error.code() == ErrorCode::kOutOfBounds) throw;
    failure = std::current_exception();
    is_deniable = step == Step::kCompile;
  } catch (const std::exception&) {
    failure = std::current_exception();
    is_deniable = step != Step::kData;
  }
  if (failure == nullptr) return run_fallback_while_compiling(io, job);
  run_fallback_after_failure(io, failure, is_deniable);
}

bool NgraphEngine::run_function(const NgraphIO& given, const Settings& settings, JobPtr* job,
                                Step* step) const {
  inject_fault(*step = Step::kData);
  for (size_t i = 0; i < given.inputs.size(); ++i) {
    require_plain(*given.inputs[i], i);
    require_dtype(*given.inputs[i], i);
    if (given.inputs[i]->numel() == 0) require_list(i);
  }
  *step = Step::kCompile;
  // Inputs in the key are copied: the function may read them again and is valid for these contents
  // only.
  std::optional<Snapshot> copies;
  std::optional<NgraphIO> frozen;
  if (!copied_inputs_.empty()) {
    copies.emplace(given.inputs, copied_inputs_, empty_indices());
    frozen = given;
    for (size_t input : copied_inputs_) frozen->inputs[input] = copies->inputs()[input];
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
  const Concurrency::Run run(&concurrency_);
  while (true) {
    *step = Step::kCompile;
    const auto function = get_ng_function(io, settings, run, job);
    if (function == nullptr) return false;
    *step = Step::kRun;
    try {
      if (has_run(*function)) break;
    } catch (const PartialWrite&) {
      throw;
    } catch (const InvalidInput&) {
      throw;
    } catch (const std::exception&) {
      if (!function->is_symbolic()) {
        if (function->has_dynamic_dims()) FunctionCache::instance().drop(id_);
        throw;
      }
      // Nothing has been written yet; a function for exactly these sizes may work.
      disable_dynamic_shapes(graph_);
      dynamic_shapes_disabled_ = true;
      FunctionCache::instance().drop_symbolic(id_);
      while (!has_run(*get_ng_function(io, settings, nullptr, nullptr))) continue;
      break;
    }
  }
  ++EngineStats::instance().engine_runs;
  return true;
}

void NgraphEngine::require_dtype(const phi::DenseTensor& tensor, size_t input) const {
  if (tensor.dtype() == header_.dtypes[input]) return;
  throw InvalidInput(concat("input ", input, " of the interval is ", tensor.dtype(),
                            ", the program declares ", header_.dtypes[input]));
}

// No converter gets an empty input: its rejection would not apply to other sizes.
void NgraphEngine::require_list(size_t input) const {
  const auto end = header_.value_inputs.end();
  if (std::find(header_.value_inputs.begin(), end, input) != end) return;
  throw InvalidInput(concat("input ", input, " of the interval is empty"));
}

void NgraphEngine::run_fallback(const NgraphIO& io) const {
  paddle_ngraph::run_fallback(graph_, io);
  ++EngineStats::instance().native_runs;
}

bool NgraphEngine::try_fallback(const NgraphIO& io) const {
  StreamGuard stream(header_.num_states == 0);
  try {
    run_fallback(io);
    stream.used();
    return true;
  } catch (const NgraphError&) {     // the fallback is unavailable
  } catch (const std::exception&) {  // states that were written keep their new values
    if (header_.num_states > 0) throw;
  }
  return false;
}

void NgraphEngine::run_fallback_without_compiling(const NgraphIO& io,
                                                  const Settings& settings) const {
  if (try_fallback(io)) return;
  {
    std::lock_guard<std::mutex> lock(static_functions_mutex_);
    StaticFunctions& statistics = static_functions();
    statistics.misses[shape_hash(signature(io.inputs, settings))] =
        statistics.count;  // treated as frequent
  }
  run(io, nullptr);
}

void NgraphEngine::run_fallback_while_compiling(const NgraphIO& io, JobPtr* job) const {
  const auto start = std::chrono::steady_clock::now();
  if (!try_fallback(io)) {  // the engine may succeed; if not, Paddle's error is raised again
    job->reset();
    return run(io, nullptr);
  }
  if (*job != nullptr) (*job)->note_fallback_succeeded();
  const auto time = std::chrono::steady_clock::now() - start;
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const int64_t least = min_fallback_us_;
  if (least == 0 || us < least) min_fallback_us_ = std::max<int64_t>(us, 1);
  ++fallback_runs_;
  ++EngineStats::instance().runs_while_compiling;
}

void NgraphEngine::run_fallback_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                              bool is_deniable) const {
  const uint64_t version = denylist_version();
  const NgraphError error = as_ngraph_error(failure);
  const bool is_overflow = error.code() == ErrorCode::kInt32Overflow;
  try {
    run_fallback(io);
  } catch (const NgraphError&) {  // the fallback is unavailable
    clear_failure(graph_);
    std::rethrow_exception(failure);
  } catch (...) {
    clear_failure(graph_);
    throw;
  }
  if (is_overflow && ++overflow_runs_ < kMaxOverflowRuns) return clear_failure(graph_);
  if (is_overflow) {
    overflow_runs_ = 0;
    deny_graph(graph_, error);
    denied_at_ = version;
    return;
  }
  if (!is_deniable) return;
  // A failure with an empty tensor does not apply to other sizes.
  if (creates_empty_tensor(graph_, io)) return clear_failure(graph_);
  deny_graph(graph_, error);
  denied_at_ = version;
}

}  // namespace paddle_ngraph
