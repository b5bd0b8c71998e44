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
#include "core/common/faults.h"
#include "core/common/threads.h"
#include "core/engine/engines.h"
#include "core/engine/function_order.h"
#include "core/engine/has_written.h"
#include "core/engine/model_builder.h"
#include "core/engine/stored_function.h"
#include "core/ov/free_memory.h"
#include "core/paddle/flags.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/tensors.h"

COMMON_DECLARE_bool(check_nan_inf);  // Paddle's own

namespace paddle_ngraph {

namespace {

// Part of the bridge's error for a value with which Paddle's own kernel would access memory out of
// bounds.
constexpr char kUnnoticed[] = "Paddle would not notice";

// Part of what is said of a run whose whole numbers the engine cannot hold (errors.TOO_WIDE). After
// so many such runs in a row, the operator that makes them is Paddle's for good.
constexpr char kTooWide[] = "a whole number needs 64 bits in this run";
constexpr int kMostTooWide = 8;

// A function takes only tensors that hold memory and have no LoD.
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

// `num_inputs` inputs are described in `key`; the contents of those that are read by value follow.
OpenSignature open_signature(const Signature& key, size_t num_inputs, const BuiltFunction& built) {
  OpenSignature open{key, std::vector<int>(key.words.size(), OpenSignature::kFixed), built.guards};
  size_t number = 0, word = 0;
  const auto take = [&] { open.symbols.at(word++) = built.open_sizes.at(number++); };
  for (size_t input = 0; input < num_inputs; ++input) {
    const int64_t rank = key.words.at(word + 1);
    word += 2;
    for (int64_t i = 0; i < rank; ++i) take();
  }
  while (number < built.open_sizes.size()) take();
  return open;
}

// So many shapes of a graph have functions of their own built as they come. Where there are more,
// as in a loop of Paddle's that shows another shape to its interval in each turn, one has to come
// once for every few functions that there have been.
constexpr size_t kOwnShapes = 16;
constexpr size_t kFunctionsPerTime = 4;

// A signature ends with those settings that functions of a graph differ in.
constexpr size_t kWordsOfSettings = 3;

// What is known of more shapes than these is forgotten.
constexpr size_t kMostShapes = 4096;

// Paddle does a run whose function is not worth a build yet.
class LeftToPaddle : public NgraphError {
 public:
  LeftToPaddle() : NgraphError("shapes that come too seldom for a function of their own") {}
};

// Of a signature, whatever the weights and the settings.
uint64_t hash_of_shapes(Signature key) {
  key.weights.reset();
  key.words.resize(key.words.size() - kWordsOfSettings);
  return SignatureHash()(key);
}

// So many failures of builds in the background are kept until a run meets them.
constexpr size_t kMaxFailures = 16;

// Whether functions may be built in the background, as the flag says.
bool may_order() {
  const std::string& when = FLAGS_ngraph_background_compile;
  if (when == "0" || when == "auto" || when == "1") return when != "0";
  throw InvalidInput(concat("FLAGS_ngraph_background_compile=", when, ": use auto, 1 or 0"));
}

// In the order of Precision.
constexpr std::array<const char*, 3> kPrecisions = {"f32", "bf16", "f16"};

Precision wanted_precision() {
  const std::string& wanted = FLAGS_ngraph_precision;
  const auto* const found = std::find(kPrecisions.begin(), kPrecisions.end(), wanted);
  if (found == kPrecisions.end()) {
    throw InvalidInput(concat("FLAGS_ngraph_precision=", wanted, ": use f32, bf16 or f16"));
  }
  return static_cast<Precision>(found - kPrecisions.begin());
}

// Held while a function of this graph is built. A handler of a signal may run the same program
// while Python builds: it builds the function too.
using BuildingMutex = std::recursive_mutex;

std::array<BuildingMutex, 64> building_mutexes;

// A forked process has no thread that would unlock those that were locked.
void renew_building_mutexes() {
  for (auto& mutex : building_mutexes) new (&mutex) BuildingMutex();
}

BuildingMutex& building_mutex(uint64_t graph) {
  static const int registered = pthread_atfork(nullptr, nullptr, renew_building_mutexes);
  static_cast<void>(registered);
  return building_mutexes[graph % building_mutexes.size()];
}

const std::vector<size_t>& no_inputs() {
  static const std::vector<size_t> none;
  return none;
}

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Whether a function that was stored under this key is for it.
bool is_for(const BuiltFunction& built, const Signature& key, size_t num_inputs) {
  return !built.is_open() || open_signature(key, num_inputs, built).fits(key);
}

// A word for each number: its value, or the bits of one that is not whole.
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
  const auto is_only_read = [&](size_t input) { return input < header_.num_read(); };
  std::copy_if(header_.value_inputs.begin(), header_.value_inputs.end(),
               std::back_inserter(copied_inputs_), is_only_read);
  // Weights are kept only if no program of the run writes them.
  infers_ = !header_.weights.empty() && !header_.trains;
  shares_threads_ = infers_ && header_.num_states == 0 && header_.is_on_cpu();
}

NgraphIO NgraphEngine::build_ng_io(paddle::CustomOpKernelContext* context) const {
  NgraphIO io;
  io.inputs.reserve(header_.num_inputs);
  for (size_t slot = 0; slot < context->InputRange().size(); ++slot) {
    const auto range = context->InputRangeAt(slot);
    for (size_t i = range.first; i < range.second; ++i) {
      auto* tensor = dense(context->InputAt(i));
      if (tensor == nullptr) continue;
      io.take(tensor, io.inputs.size() >= header_.num_read());
    }
  }
  require_inputs(io.inputs.size());
  require_outputs(*context);
  for (size_t i = 0; i < header_.num_outputs; ++i) {
    io.outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  if (FLAGS_check_nan_inf) place_spare_outputs(context);
  io.num_states = header_.num_states;
  if (header_.num_states == 0) return io;
  const auto states = context->OutputRangeAt(context->OutputRange().size() - 1);
  for (size_t i = states.first; i < states.second; ++i) {
    io.state_outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  return io;
}

// Paddle's search for NaN asks all outputs for their place, also those that the operator has to
// spare.
void NgraphEngine::place_spare_outputs(paddle::CustomOpKernelContext* context) const {
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
  const auto& ranges = context.OutputRange();  // one for each fresh output, and one for the states
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
  const std::array<int64_t, kWordsOfSettings> last = {settings.num_threads, settings.streams,
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
    // Gradients are too small for it.
    if (precision == Precision::kFloat16 && infers_) settings.precision = precision;
    return settings;
  }
  if (precision == Precision::kBfloat16) settings.precision = precision;
  settings.num_threads = engine_threads();
  if (header_.most_threads == 0) return settings;
  const int64_t most = num_threads(), wanted = int64_t{header_.most_threads} * header_.runs_at_once;
  if (wanted < most) settings.num_threads = static_cast<int>(wanted);
  settings.streams =
      static_cast<int>(std::min<int64_t>(header_.runs_at_once, std::min(wanted, most)));
  settings.runs_at_once = settings.streams;
  return settings;
}

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io) const {
  return get_ng_function(io, settings(), nullptr, nullptr);
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_function(const NgraphIO& io,
                                                            const Settings& now) const {
  Signature key = signature(io.inputs, now);
  key.weights = weights_.fingerprint(io.inputs);
  auto function = find_with_room(&key, io);
  if (function) ++EngineStats::instance().functions_reused;
  return function;
}

bool NgraphEngine::serves(const NgraphFunction& function, const NgraphIO& io) const {
  const auto* const in_place = function.weights_in_place();
  return in_place == nullptr || in_place->serve(weights_, io.inputs);
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_serving(const Signature& key, const NgraphIO& io,
                                                           bool looks_again) const {
  auto& cache = FunctionCache::instance();
  auto function = cache.find(key, looks_again);
  if (!function || serves(*function, io)) return function;
  copies_weights_at_ = attempts().load();
  {
    std::lock_guard<std::mutex> lock(own_functions_mutex_);
    OwnFunctions& own = own_functions();
    own.known.erase(SignatureHash()(key));
    own.lacking[hash_of_shapes(key)] = own.count;  // often enough to be built again
  }
  cache.drop(*function);
  return nullptr;
}

std::shared_ptr<NgraphFunction> NgraphEngine::find_with_room(Signature* key,
                                                             const NgraphIO& io) const {
  const auto& cache = FunctionCache::instance();
  const bool had_no_room = cache.had_no_room_for(*key);
  auto function = find_serving(*key, io, had_no_room);
  if (function || !had_no_room || cache.has_room_for(weights_.num_bytes(io.inputs))) {
    return function;
  }
  key->weights.reset();
  return find_serving(*key, io);
}

std::shared_ptr<NgraphFunction> NgraphEngine::get_ng_function(const NgraphIO& io,
                                                              const Settings& settings,
                                                              const Concurrency::Run& run,
                                                              Order* order) const {
  const Settings shared = shared_settings(settings, run);
  if (shared.streams == settings.streams) return get_ng_function(io, settings, nullptr, order);
  if (!run.is_alone()) {
    if (auto function = find_function(io, shared)) return function;
  }
  const auto unshared = find_function(io, settings);
  if (unshared && (run.is_alone() || unshared->has_little_to_do())) return unshared;
  try {
    auto function = get_ng_function(io, shared, &settings, order);
    if (function == nullptr) return unshared;  // it is built in the background
    // If there is room for one of the two only, they would take turns.
    if (unshared && !find_function(io, settings)) shares_threads_ = false;
    return function;
  } catch (const LeftToPaddle&) {
    if (unshared) return unshared;
    throw;
  } catch (const InvalidInput&) {  // the unshared function will say whether it is the input
  } catch (const std::exception&) {
    shares_threads_ = false;
  }
  return get_ng_function(io, settings, nullptr, order);
}

// A function for runs that overlap: each has as many threads as one that is alone, as long as there
// are cores for them.
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
                                                              const Settings* meanwhile,
                                                              Order* order) const {
  const Moment since = Moment::now();
  Signature key = signature(io.inputs, now);
  key.weights = weights_.fingerprint(io.inputs);
  auto& cache = FunctionCache::instance();
  if (const auto outdated = weights_.take_outdated()) {
    cache.drop(id_, *outdated);
    std::lock_guard<std::mutex> lock(own_functions_mutex_);
    own_functions().known.clear();  // none of these was dropped for lack of room
  }
  if (auto function = find_with_room(&key, io)) {
    ++EngineStats::instance().functions_reused;
    return function;
  }
  if (ordered_ != nullptr) {
    if (order != nullptr) return nullptr;
    wait_for_orders();
  }
  // One build per graph at a time: another thread may be building the same function, or one from
  // the same model.
  std::unique_lock<BuildingMutex> lock(building_mutex(id_), std::try_to_lock);
  if (!lock.owns_lock()) {
    if (meanwhile) return get_ng_function(io, *meanwhile, nullptr, order);
    lock.lock();
  }
  if (ordered_ != nullptr) {  // by a thread that was first
    if (order != nullptr) return nullptr;
    wait_for_orders();
  }
  // It may be there by now, however short the time was; or it would be known, and left.
  if (auto function = find_serving(key, io, true)) return function;
  const bool keeps_weights = key.weights.has_value();
  if (order != nullptr) {
    const size_t bytes = keeps_weights ? weights_.num_bytes(io.inputs) : 0;
    const bool is_full = !FunctionOrder::has_room_for(bytes);
    if (is_full && wants_order(graph_, io.inputs, least_native_us_)) return nullptr;
    if (is_full) order = nullptr;
  }
  if (leaves(key, now)) throw LeftToPaddle();
  bool in_place = keeps_weights && header_.is_on_cpu() && !collects() &&
                  copies_weights_at_ != attempts() &&
                  weights_.are_untouched_since(since, io.inputs);
  for (bool is_first = true;; is_first = false) {
    std::optional<Variables> variables;
    if (in_place) variables.emplace(io.inputs, since, weights_);
    auto frozen = std::make_shared<const Snapshot>(snapshot(io.inputs, keeps_weights, in_place));
    // What the snapshot shows is held, unless they have moved in between.
    if (in_place && !weights_.are_untouched_since(since, io.inputs)) {
      in_place = false;
      continue;
    }
    const Signature wanted = std::exchange(key, signature(frozen->inputs(), now));
    key.weights = wanted.weights;
    if (keeps_weights && !in_place) key.weights = weights_.fingerprint_now(frozen->inputs());
    if (!is_first || !(key == wanted)) {  // it was built, or an input written, meanwhile
      if (auto function = find_serving(key, io, true)) return function;
    }
    throw_failure(key);
    if (auto function = load(key, *frozen, now)) return function;
    const bool is_ordered =
        order != nullptr && !collects() && wants_order(graph_, io.inputs, least_native_us_);
    if (is_ordered && !in_place) {
      *order = std::make_shared<FunctionOrder>(shared_from_this(), key, frozen, now);
      return nullptr;
    }
    if (!is_ordered) {
      auto function = build_and_keep(key, *frozen, now, nullptr, variables ? &*variables : nullptr);
      if (function != nullptr && serves(*function, io)) return function;
    }
    in_place = false;
  }
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_ng_function(const NgraphIO& io) const {
  const bool keeps_weights = weights_.fingerprint(io.inputs).has_value();
  return wrap(build(snapshot(io.inputs, keeps_weights), keeps_weights, settings()));
}

Snapshot NgraphEngine::snapshot(const Inputs& inputs, bool keeps_weights, bool in_place) const {
  return {inputs, header_.value_inputs, keeps_weights ? weights_.inputs() : no_inputs(), in_place};
}

std::shared_ptr<NgraphFunction> NgraphEngine::load(const Signature& key, const Snapshot& snapshot,
                                                   const Settings& settings) const {
  const auto on_disk = disk_key(key, settings);
  if (!on_disk || collects()) return nullptr;
  auto loaded = load_function(*on_disk);
  if (!loaded || !is_for(*loaded, key, header_.num_inputs)) return nullptr;
  ++EngineStats::instance().functions_loaded;
  if (key.weights.has_value()) ++EngineStats::instance().functions_with_weights;
  remember_shapes(graph_, snapshot.inputs(), header_.value_inputs,
                  loaded->function->settings().parts);
  return keep(key, snapshot, std::move(*loaded));
}

NgraphEngine::OwnFunctions& NgraphEngine::own_functions() const {
  if (own_functions_.attempt != attempts()) own_functions_ = {attempts(), 0, {}, {}, {}};
  return own_functions_;
}

bool NgraphEngine::leaves(const Signature& key, const Settings& settings) const {
  if (FLAGS_ngraph_strict || collects()) return false;
  bool is_new = false;  // to this process
  {
    std::lock_guard<std::mutex> lock(own_functions_mutex_);
    OwnFunctions& own = own_functions();
    // Of those that it had, too, where the cache has room for fewer.
    const bool was_built = own.known.count(SignatureHash()(key)) > 0;
    if (own.first.size() < kOwnShapes && !was_built) return false;
    const uint64_t shape = hash_of_shapes(key);
    is_new = own.known.size() < kMostShapes && !was_built;
    if (is_new && own.first.count(shape) > 0) return false;  // it has one for other settings
    if (own.lacking.size() >= kMostShapes) own.lacking.clear();
    if (++own.lacking[shape] * kFunctionsPerTime >= own.count) return false;
  }
  if (!may_leave(graph_)) return false;
  if (!is_new) return true;  // it is on disk, maybe, but there was no room for it
  const auto on_disk = disk_key(key, settings);
  return !on_disk || !find_file(*on_disk);
}

std::shared_ptr<NgraphFunction> NgraphEngine::build_and_keep(const Signature& key,
                                                             const Snapshot& snapshot,
                                                             const Settings& settings,
                                                             const std::atomic<bool>* is_wanted,
                                                             Variables* in_place) const {
  const auto on_disk = disk_key(key, settings);
  const auto start = std::chrono::steady_clock::now();
  BuiltFunction built = build(snapshot, key.weights.has_value(), settings);
  const auto time = std::chrono::steady_clock::now() - start;
  const auto is_of_key = [&] {
    return in_place == nullptr || weights_.are_untouched_since(in_place->since, in_place->inputs);
  };
  const std::chrono::milliseconds least(FLAGS_ngraph_cache_min_ms);
  if (!collect(on_disk, built, is_of_key) && on_disk && time >= least) {
    store_function(*on_disk, built, is_of_key);
  }
  if (in_place != nullptr) in_place->held.reset();
  return_free_memory();
  if (!is_of_key()) return nullptr;
  return keep(key, snapshot, std::move(built), is_wanted, in_place);
}

std::shared_ptr<NgraphFunction> NgraphEngine::keep(const Signature& key, const Snapshot& snapshot,
                                                   BuiltFunction built,
                                                   const std::atomic<bool>* is_wanted,
                                                   const Variables* in_place) const {
  std::optional<OpenSignature> open;
  if (built.is_open()) {
    open = open_signature(key, header_.num_inputs, built);
  } else {
    std::lock_guard<std::mutex> lock(own_functions_mutex_);
    OwnFunctions& own = own_functions();
    const uint64_t shape = hash_of_shapes(key);
    ++own.count;
    own.lacking.erase(shape);
    if (own.known.size() < kMostShapes) own.known.insert(SignatureHash()(key));
    if (own.first.size() < kOwnShapes) own.first.insert(shape);
  }
  size_t bytes = key.weights.has_value() ? weights_.num_bytes(snapshot.inputs()) : 0;
  if (built.function->settings().rest() > 0) bytes *= 2;  // which is compiled, too
  auto function = wrap(std::move(built));
  if (in_place != nullptr) {
    function->read_in_place(std::make_unique<WeightsInPlace>(weights_, in_place->inputs));
    ++EngineStats::instance().functions_with_weights_in_place;
  }
  return FunctionCache::instance().insert(key, std::move(function), bytes, std::move(open),
                                          is_wanted);
}

void NgraphEngine::keep_failure(const Signature& key, const std::exception_ptr& failure,
                                bool is_for_all) const {
  std::lock_guard<std::mutex> lock(failures_mutex_);
  if (failures_.size() == kMaxFailures) failures_.erase(failures_.begin());
  failures_.push_back({key, failure, attempts(), is_for_all});
}

void NgraphEngine::throw_failure(const Signature& key) const {
  std::exception_ptr failure;
  {
    std::lock_guard<std::mutex> lock(failures_mutex_);
    const auto found = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& each) {
      return each.is_for_all || each.key == key;
    });
    if (found == failures_.end()) return;
    if (found->attempt == attempts()) failure = found->reason;
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

bool NgraphEngine::collects() const {
  std::lock_guard<std::mutex> lock(collection_mutex_);
  return !collection_.folder.empty();
}

bool NgraphEngine::collect(const std::optional<DiskKey>& key, const BuiltFunction& built,
                           const std::function<bool()>& is_of_key) const {
  std::lock_guard<std::mutex> lock(collection_mutex_);
  if (collection_.folder.empty()) return false;
  try {
    if (!key) throw NgraphError("it involves a converter from outside the package");
    store_function_in(collection_.folder, *key, built, is_of_key);
  } catch (const std::exception& error) {  // the run itself goes on
    collection_.failure = error.what();
  }
  return true;
}

std::optional<DiskKey> NgraphEngine::disk_key(const Signature& key,
                                              const Settings& settings) const {
  if (!has_places() && !collects()) return std::nullopt;
  const std::string environment = build_environment(graph_, settings);
  if (environment.empty()) return std::nullopt;
  std::ostringstream instance;
  if (has_closed_shapes_) instance << "closed ";
  if (key.weights) instance << "weights " << *key.weights << ' ';
  for (int64_t word : key.words) instance << word << ' ';
  return DiskKey{disk_key_of_graph(graph_, environment), instance.str()};
}

BuiltFunction NgraphEngine::build(const Snapshot& snapshot, bool keeps_weights,
                                  const Settings& settings) const {
  BuiltFunction built =
      build_function(graph_, snapshot.inputs(), header_.value_inputs,
                     keeps_weights ? weights_.inputs() : no_inputs(), snapshot.copies(), settings);
  ++EngineStats::instance().functions_built;
  if (keeps_weights) ++EngineStats::instance().functions_with_weights;
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
  if (!may_order()) return run(io, nullptr);
  Order order;
  run(io, &order);
  if (order == nullptr) return;
  // It is built when the run is over: until then Python is busy with making the native twin of the
  // interval.
  try {
    take_order(order);
  } catch (const std::exception&) {  // the next run gives another one
  }
}

void NgraphEngine::run(const NgraphIO& io, Order* order) const {
  const Settings now = settings();
  auto step = Step::kData;
  if (FLAGS_ngraph_strict) {
    try {
      run_function(io, now, nullptr, &step);
      return;
    } catch (const LeftToPaddle&) {  // the flag was set again meanwhile
      return run(io, order);
    }
  }
  if (refused_at_ == attempts()) return run_natively(io);
  if (FLAGS_check_nan_inf) {  // who looks for NaN wants the operator that makes it
    try {
      return run_natively(io);
    } catch (const NgraphError&) {  // it cannot run natively at all
    }
  }
  std::string reason;  // why Paddle keeps the interval for good; empty if the data is to blame
  std::exception_ptr failure;
  try {
    if (run_function(io, now, order, &step)) {
      runs_too_wide_ = 0;
      return;
    }
  } catch (const HasWritten&) {
    throw;
  } catch (const std::bad_alloc&) {
    failure = std::current_exception();
  } catch (const LeftToPaddle&) {
    return run_left(io, now);
  } catch (const InvalidInput& error) {
    if (std::strstr(error.what(), kUnnoticed) != nullptr) throw;
    failure = std::current_exception();
    if (step == Step::kCompile) reason = error.what();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    if (step != Step::kData) reason = error.what();
  }
  if (failure == nullptr) return run_meanwhile(io, order);
  run_instead(io, failure, reason);
}

bool NgraphEngine::run_function(const NgraphIO& given, const Settings& settings, Order* order,
                                Step* step) const {
  may_fail(*step = Step::kData);
  for (size_t i = 0; i < given.inputs.size(); ++i) {
    require_plain(*given.inputs[i], i);
    require_dtype(*given.inputs[i], i);
    if (given.inputs[i]->numel() == 0) require_list(i);
  }
  *step = Step::kCompile;
  // What the key is made of may be read again by the function, which holds for these contents.
  std::optional<Snapshot> copies;
  std::optional<NgraphIO> frozen;
  if (!copied_inputs_.empty()) {
    copies.emplace(given.inputs, copied_inputs_, no_inputs());
    frozen = given;
    for (size_t input : copied_inputs_) frozen->inputs[input] = copies->inputs()[input];
  }
  const NgraphIO& io = frozen ? *frozen : given;
  const Moment since = Moment::now();  // before weights are looked at
  const auto has_run = [&](const NgraphFunction& function) {
    WeightsInPlace::Run reading(function, weights_, io.inputs, since);
    if (!reading.has_begun()) return false;
    function.run(io);
    reading.has_computed();
    return true;
  };
  const Concurrency::Run run(&concurrency_);
  while (true) {
    *step = Step::kCompile;
    const auto function = get_ng_function(io, settings, run, order);
    if (function == nullptr) return false;
    *step = Step::kRun;
    try {
      if (has_run(*function)) break;
    } catch (const HasWritten&) {
      throw;
    } catch (const InvalidInput&) {
      throw;
    } catch (const std::exception&) {
      if (!function->is_open()) {
        if (function->has_open_sizes()) FunctionCache::instance().drop(id_);
        throw;
      }
      // Nothing has been written yet; a function for exactly these sizes may work.
      close_shapes(graph_);
      has_closed_shapes_ = true;
      FunctionCache::instance().drop_open(id_);
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

// No converter sees an empty input: if it refused, that would say nothing about other sizes.
void NgraphEngine::require_list(size_t input) const {
  const auto end = header_.value_inputs.end();
  if (std::find(header_.value_inputs.begin(), end, input) != end) return;
  throw InvalidInput(concat("input ", input, " of the interval is empty"));
}

void NgraphEngine::run_natively(const NgraphIO& io) const {
  paddle_ngraph::run_natively(graph_, io);
  ++EngineStats::instance().native_runs;
}

bool NgraphEngine::try_natively(const NgraphIO& io) const {
  StreamGuard stream(header_.num_states == 0);
  try {
    run_natively(io);
    stream.used();
    return true;
  } catch (const NgraphError&) {     // it cannot run natively at all
  } catch (const std::exception&) {  // what it has written of the states stays
    if (header_.num_states > 0) throw;
  }
  return false;
}

void NgraphEngine::run_left(const NgraphIO& io, const Settings& settings) const {
  if (try_natively(io)) return;
  {
    std::lock_guard<std::mutex> lock(own_functions_mutex_);
    OwnFunctions& own = own_functions();
    own.lacking[hash_of_shapes(signature(io.inputs, settings))] = own.count;  // often enough
  }
  run(io, nullptr);
}

void NgraphEngine::run_meanwhile(const NgraphIO& io, Order* order) const {
  const auto start = std::chrono::steady_clock::now();
  if (!try_natively(io)) {  // the engine may; if it fails too, Paddle's error is raised again
    order->reset();
    return run(io, nullptr);
  }
  if (*order != nullptr) (*order)->has_run_natively();
  const auto time = std::chrono::steady_clock::now() - start;
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const int64_t least = least_native_us_;
  if (least == 0 || us < least) least_native_us_ = std::max<int64_t>(us, 1);
  ++runs_meanwhile_;
  ++EngineStats::instance().runs_while_compiling;
}

void NgraphEngine::run_instead(const NgraphIO& io, const std::exception_ptr& failure,
                               const std::string& reason) const {
  const uint64_t attempt = attempts();
  const std::string said = text_of(failure);
  const bool is_too_wide = said.find(kTooWide) != std::string::npos;
  try {
    run_natively(io);
  } catch (const NgraphError&) {  // it cannot run natively at all
    acquit(graph_);
    std::rethrow_exception(failure);
  } catch (...) {
    acquit(graph_);
    throw;
  }
  if (is_too_wide && ++runs_too_wide_ < kMostTooWide) return acquit(graph_);
  if (is_too_wide) {
    runs_too_wide_ = 0;
    refuse(graph_, said);
    refused_at_ = attempt;
    return;
  }
  if (reason.empty()) return;
  // A failure with an empty tensor says nothing about other sizes.
  if (makes_empty(graph_, io)) return acquit(graph_);
  refuse(graph_, reason);
  refused_at_ = attempt;
}

}  // namespace paddle_ngraph
