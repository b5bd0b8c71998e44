#include "core/engine/function_store.h"

#include <chrono>
#include <sstream>
#include <utility>
#include <vector>

#include "core/common/openvino_use.h"
#include "core/engine/events.h"
#include "core/engine/stored_function.h"
#include "core/engine/work_spans.h"
#include "core/ov/trim_memory.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

// A build of at most this size frees a few megabytes, which the next build reuses: returning them
// to the system costs milliseconds.
constexpr size_t kSmallWeightBytes = size_t{1} << 20;
constexpr size_t kSmallGraphBytes = size_t{64} << 10;

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

// Whether a function that was stored under this key is valid for the key itself. The key of a
// function with symbolic sizes must fit its symbolic signature.
bool is_for(const BuiltFunction& built, const Signature& key, size_t num_inputs) {
  return !built.is_symbolic() || symbolic_signature(key, num_inputs, built).fits(key);
}

}  // namespace

FunctionStore::FunctionStore(const EngineGraph& graph)
    : graph_(graph), weights_(graph.header().weights, graph.header().has_eager_weights) {}

FunctionStore::~FunctionStore() { drop(); }

FunctionStore::Request FunctionStore::request(const NgraphIO& io, const Settings& settings) {
  Request request{io, settings, graph_.signature(io.inputs, settings)};
  request.key.weights = weights_.fingerprint(io.inputs);
  return request;
}

void FunctionStore::drop_outdated() {
  const auto outdated = weights_.take_outdated();
  if (!outdated) return;
  FunctionCache::instance().drop(graph_.id(), *outdated);
  shapes_.forget_built();
}

FunctionStore::FunctionPtr FunctionStore::find(Request* request) {
  const auto& cache = FunctionCache::instance();
  const bool was_evicted = cache.was_evicted_for_capacity(request->key);
  auto function = find_valid(*request, was_evicted);
  if (!function && was_evicted && !cache.has_capacity_for(weights_.num_bytes(request->io.inputs))) {
    request->key.weights.reset();
    function = find_valid(*request, false);
  }
  if (function) add(Quantity::kFunctionsReused);
  return function;
}

FunctionStore::FunctionPtr FunctionStore::find_valid(const Request& request, bool is_retry) {
  auto& cache = FunctionCache::instance();
  auto function = cache.find(request.key, is_retry);
  if (!function || is_valid_for(*function, request.io)) return function;
  copied_weights_version_ = denylist_version().load();
  shapes_.forget(request.key);
  cache.drop(*function);
  return nullptr;
}

bool FunctionStore::is_valid_for(const NgraphFunction& function, const NgraphIO& io) const {
  const auto* const in_place = function.weights_in_place();
  return in_place == nullptr || in_place->is_valid_for(weights_, io.inputs);
}

bool FunctionStore::should_skip(const Request& request) {
  if (FLAGS_ngraph_strict || is_collecting()) return false;
  const auto frequency = shapes_.count_miss(request.key);
  if (frequency == ShapeStatistics::Frequency::kFrequent) return false;
  if (!may_skip_compile(graph_.text())) return false;
  // The function of a kSeldom shape may be on disk, but was evicted for lack of capacity: it is not
  // loaded again, and the run falls back.
  if (frequency == ShapeStatistics::Frequency::kSeldom) return true;
  const auto on_disk = disk_key(request.key, request.settings);
  return !on_disk || !find_file(*on_disk);
}

void FunctionStore::mark_frequent(const NgraphIO& io, const Settings& settings) {
  shapes_.mark_frequent(graph_.signature(io.inputs, settings));
}

size_t FunctionStore::num_constant_bytes(const Request& request) const {
  return request.has_constant_weights() ? weights_.num_bytes(request.io.inputs) : 0;
}

bool FunctionStore::may_use_weights_in_place(const Request& request, const Epoch& since) const {
  return request.has_constant_weights() && graph_.header().is_on_cpu() && !is_collecting() &&
         copied_weights_version_ != denylist_version() &&
         weights_.are_untouched_since(since, request.io.inputs);
}

std::optional<FunctionStore::FrozenInputs> FunctionStore::freeze(Request* request,
                                                                 const Epoch* in_place) const {
  const Inputs& inputs = request->io.inputs;
  const bool constant_weights = request->has_constant_weights();
  std::optional<FrozenInputs> frozen(std::in_place);
  if (in_place != nullptr)
    frozen->variables = std::make_shared<Variables>(inputs, *in_place, weights_);
  {
    const WorkSpan span(WorkKind::kCopy);
    frozen->snapshot =
        std::make_shared<const Snapshot>(snapshot(inputs, constant_weights, in_place != nullptr));
  }
  // Weights are read in place only if no thread has written them, or given a variable other memory,
  // before the snapshot pinned the memory.
  if (in_place != nullptr && !weights_.are_untouched_since(*in_place, inputs)) return std::nullopt;
  const Inputs& copies = frozen->snapshot->inputs();
  const Signature wanted = std::exchange(request->key, graph_.signature(copies, request->settings));
  request->key.weights = wanted.weights;
  if (constant_weights && in_place == nullptr) {
    request->key.weights = weights_.fingerprint_now(copies);
  }
  frozen->key_has_changed = !(request->key == wanted);
  return frozen;
}

bool FunctionStore::Variables::are_untouched() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return are_untouched_now();
}

bool FunctionStore::Variables::are_untouched_now() const {
  if (inputs_ != nullptr) return watch_.are_untouched_since(since_, *inputs_);
  if (pin_ == nullptr) return were_untouched_;
  return were_untouched_ && watch_.are_untouched_since(since_, tensors_, *pin_);
}

void FunctionStore::Variables::end_run() {
  const std::lock_guard<std::mutex> lock(mutex_);
  were_untouched_ = are_untouched_now();
  inputs_ = nullptr;
}

void FunctionStore::Variables::unpin() {
  std::unique_ptr<MemoryPin> pin;  // released after the lock: freeing may wait for the GIL
  const std::lock_guard<std::mutex> lock(mutex_);
  if (inputs_ == nullptr) were_untouched_ = are_untouched_now();
  pin = std::move(pin_);
}

FunctionStore::FunctionPtr FunctionStore::load(const Request& request, const FrozenInputs& frozen) {
  const int64_t start = ticks();
  const auto on_disk = disk_key(request.key, request.settings);
  if (!on_disk || is_collecting()) return nullptr;
  auto loaded =
      load_function(*on_disk, {graph_.header(), frozen.snapshot->inputs(), request.settings});
  if (!loaded || !is_for(*loaded, request.key, graph_.header().num_inputs)) return nullptr;
  record_event(Reason::kLoaded, graph_.subgraph_id(), start);
  if (request.has_constant_weights()) add(Quantity::kFunctionsWithWeights);
  remember_shapes(graph_.text(), frozen.snapshot->inputs(), graph_.header().value_inputs,
                  loaded->function->settings().parts);
  return add_to_cache(request.key, *frozen.snapshot, std::move(*loaded));
}

FunctionStore::FunctionPtr FunctionStore::build_and_cache(const Signature& key,
                                                          const Snapshot& snapshot,
                                                          const Settings& settings,
                                                          const std::atomic<bool>* is_active,
                                                          Reason reason, Variables* in_place) {
  const OpenVinoUse use;
  const auto on_disk = disk_key(key, settings);
  const auto start = std::chrono::steady_clock::now();
  BuiltFunction built = build(snapshot, key.weights.has_value(), settings, reason);
  const auto time = std::chrono::steady_clock::now() - start;
  const auto is_valid = [&] { return in_place == nullptr || in_place->are_untouched(); };
  const std::chrono::milliseconds least(FLAGS_ngraph_cache_min_ms);
  if (!collection_.add(on_disk, built, is_valid) && on_disk && time >= least) {
    store_function(*on_disk, built, is_valid);
  }
  if (in_place != nullptr) in_place->unpin();
  const size_t weight_bytes = key.weights.has_value() ? weights_.num_bytes(snapshot.inputs()) : 0;
  if (weight_bytes > kSmallWeightBytes || graph_.text().size() > kSmallGraphBytes) {
    trim_free_memory();
  }
  if (!is_valid()) return nullptr;
  return add_to_cache(key, snapshot, std::move(built), is_active, in_place);
}

FunctionStore::FunctionPtr FunctionStore::add_to_cache(const Signature& key,
                                                       const Snapshot& snapshot,
                                                       BuiltFunction built,
                                                       const std::atomic<bool>* is_active,
                                                       const Variables* in_place) {
  std::optional<SymbolicSignature> symbolic;
  if (built.is_symbolic()) {
    symbolic = symbolic_signature(key, graph_.header().num_inputs, built);
  } else {
    shapes_.count_function(key);
  }
  size_t bytes = key.weights.has_value() ? weights_.num_bytes(snapshot.inputs()) : 0;
  if (built.function->settings().remainder() > 0) {
    // A second model is compiled for the remaining chunks, and has constants of its own.
    bytes *= 2;
  }
  auto function = wrap(std::move(built));
  if (in_place != nullptr) {
    function->use_weights_in_place(std::make_unique<WeightsInPlace>(in_place->weights()));
    add(Quantity::kFunctionsWithWeightsInPlace);
  }
  return FunctionCache::instance().insert(key, std::move(function), bytes, std::move(symbolic),
                                          is_active);
}

FunctionStore::FunctionPtr FunctionStore::build_uncached(const NgraphIO& io,
                                                         const Settings& settings) {
  const bool constant_weights = weights_.fingerprint(io.inputs).has_value();
  return wrap(
      build(snapshot(io.inputs, constant_weights), constant_weights, settings, Reason::kBuilt));
}

BuiltFunction FunctionStore::build(const Snapshot& snapshot, bool constant_weights,
                                   const Settings& settings, Reason reason) const {
  const int64_t start = ticks();
  BuiltFunction built = build_function(
      graph_.text(), snapshot.inputs(), graph_.header().value_inputs,
      constant_weights ? weights_.inputs() : std::vector<size_t>{}, snapshot.copies(), settings);
  record_event(reason, graph_.subgraph_id(), start);
  if (constant_weights) add(Quantity::kFunctionsWithWeights);
  return built;
}

FunctionStore::FunctionPtr FunctionStore::wrap(BuiltFunction built) {
  const auto& header = graph_.header();
  return std::make_shared<NgraphFunction>(std::move(built), header.num_outputs, header.num_states,
                                          spare_tensors());
}

Snapshot FunctionStore::snapshot(const Inputs& inputs, bool constant_weights, bool in_place) const {
  return {inputs, graph_.header().value_inputs,
          constant_weights ? weights_.inputs() : std::vector<size_t>{}, in_place};
}

std::optional<DiskKey> FunctionStore::disk_key(const Signature& key,
                                               const Settings& settings) const {
  if (!has_cache_folder() && !is_collecting()) return std::nullopt;
  const std::string environment = build_environment(graph_.text(), settings);
  if (environment.empty()) return std::nullopt;
  std::ostringstream instance;
  if (symbolic_sizes_disabled_) instance << "closed ";
  if (key.weights) instance << "weights " << key.weights->hex() << ' ';
  for (int64_t word : key.words) instance << word << ' ';
  return DiskKey{disk_key_of_graph(graph_.text(), environment), instance.str(),
                 graph_.header().digest,
                 key.weights ? weights_.digests_of(*key.weights) : std::vector<Digest>{}};
}

void FunctionStore::drop() { FunctionCache::instance().drop(graph_.id()); }

void FunctionStore::disable_symbolic_sizes() {
  disable_dynamic_shapes(graph_.text());
  symbolic_sizes_disabled_ = true;
  FunctionCache::instance().drop_symbolic(graph_.id());
}

void FunctionStore::begin_collection(const std::string& folder, const Digest& identity) {
  collection_.begin(folder, identity);
  drop();
}

std::shared_ptr<SpareTensors> FunctionStore::spare_tensors() {
  std::lock_guard<std::mutex> lock(spare_tensors_mutex_);
  auto shared = spare_tensors_.lock();
  if (shared == nullptr) spare_tensors_ = shared = std::make_shared<SpareTensors>();
  return shared;
}

}  // namespace paddle_ngraph
