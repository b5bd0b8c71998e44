#include "core/engine/stored_function.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/engine/engine_settings.h"
#include "core/engine/function_cache.h"
#include "core/paddle/flags.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

void require(bool holds) {
  if (!holds) throw NgraphError("a stored function is damaged");
}

// Serializes scalars and lists of scalars as a sequence of 64-bit words.
class WordWriter {
 public:
  template <typename Number>
  void add(Number number) {
    if constexpr (std::is_floating_point_v<Number>) {
      const double value = number;
      words_.emplace_back();
      std::memcpy(&words_.back(), &value, sizeof(value));
    } else {
      words_.push_back(static_cast<int64_t>(number));
    }
  }

  template <typename Number>
  void add(const std::vector<Number>& numbers) {
    add(numbers.size());
    for (Number number : numbers) add(number);
  }

  std::vector<int64_t> take() { return std::move(words_); }

 private:
  std::vector<int64_t> words_;
};

// Reads words that anybody may have written: throws NgraphError for a number that its type does not
// represent, and for a list that is longer than the rest.
class WordReader {
 public:
  explicit WordReader(const std::vector<int64_t>& words) : words_(words) {}

  template <typename Number>
  Number next() {
    require(at_ < words_.size());
    const int64_t word = words_[at_++];
    if constexpr (std::is_floating_point_v<Number>) {
      double value;
      std::memcpy(&value, &word, sizeof(value));
      return static_cast<Number>(value);
    } else {
      const auto number = static_cast<Number>(word);
      require(static_cast<int64_t>(number) == word && (number < Number{0}) == (word < 0));
      return number;
    }
  }

  // The length of a list whose items take one word at least.
  size_t length() {
    const auto count = next<size_t>();
    require(count <= words_.size() - at_);
    return count;
  }

  template <typename Number>
  std::vector<Number> list() {
    std::vector<Number> numbers(length());
    for (auto& number : numbers) number = next<Number>();
    return numbers;
  }

  void end() const { require(at_ == words_.size()); }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

std::vector<int64_t> words_of(const BuiltFunction& built) {
  WordWriter words;
  const Settings& settings = built.function->settings();
  words.add(settings.num_threads);
  words.add(static_cast<int>(settings.precision));
  words.add(static_cast<int>(settings.weight_format));
  words.add(settings.fuses_loops);
  words.add(settings.parts);
  words.add(settings.streams);
  words.add(settings.concurrent_runs);
  words.add(settings.shares_remainder);
  words.add(settings.device);
  words.add(settings.num_pinned);
  words.add(settings.deferred_errors_id);
  words.add(built.parameter_inputs);
  words.add(built.symbolic_dims);
  words.add(built.guards);
  words.add(built.samples.size());
  for (const RandomSample& sample : built.samples) {
    words.add(static_cast<int>(sample.distribution));
    words.add(sample.a);
    words.add(sample.b);
    words.add(sample.seed);
    words.add(sample.shape);
  }
  words.add(built.checks.size());
  for (const RangeCheck& check : built.checks) {
    words.add(check.input);
    words.add(check.low);
    words.add(check.high);
    words.add(check.ignored);
    words.add(std::vector<char>(check.message.begin(), check.message.end()));
    words.add(static_cast<int>(check.code));
    words.add(check.op_id);
  }
  words.add(built.updates.num_threads);
  words.add(built.updates.steps.size());
  for (const Update& step : built.updates.steps) {
    words.add(step.optimizer);
    words.add(step.attributes);
    words.add(step.states);
    words.add(step.gradients);
    words.add(step.factors);
    words.add(step.parameters);
  }
  return words.take();
}

Settings read_settings(WordReader* words) {
  Settings settings;
  settings.num_threads = words->next<int>();
  settings.precision = static_cast<Precision>(words->next<int>());
  settings.weight_format = static_cast<WeightFormat>(words->next<int>());
  settings.fuses_loops = words->next<int>() != 0;
  settings.parts = words->next<int>();
  settings.streams = words->next<int>();
  settings.concurrent_runs = words->next<int>();
  settings.shares_remainder = words->next<int>() != 0;
  settings.device = words->list<char>();
  settings.num_pinned = words->next<size_t>();
  settings.deferred_errors_id = words->next<int64_t>();
  return settings;
}

// Reads everything but the function itself.
BuiltFunction read_built_function(WordReader* words) {
  BuiltFunction built;
  built.parameter_inputs = words->list<size_t>();
  built.symbolic_dims = words->list<int>();
  built.guards = words->list<int64_t>();
  built.samples.resize(words->length());
  for (RandomSample& sample : built.samples) {
    sample.distribution = static_cast<Distribution>(words->next<int>());
    sample.a = words->next<float>();
    sample.b = words->next<float>();
    sample.seed = words->next<int64_t>();
    sample.shape = words->list<size_t>();
  }
  built.checks.resize(words->length());
  for (RangeCheck& check : built.checks) {
    check.input = words->next<size_t>();
    check.low = words->list<int64_t>();
    check.high = words->list<int64_t>();
    check.ignored = words->list<int64_t>();
    const auto message = words->list<char>();
    check.message.assign(message.begin(), message.end());
    check.code = static_cast<ErrorCode>(words->next<int>());
    check.op_id = words->next<int64_t>();
  }
  built.updates.num_threads = words->next<int>();
  built.updates.steps.resize(words->length());
  for (Update& step : built.updates.steps) {
    step.optimizer = words->next<int>();
    step.attributes = words->list<double>();
    step.states = words->list<size_t>();
    step.gradients = words->list<int64_t>();
    step.factors = words->list<int64_t>();
    step.parameters = words->list<int64_t>();
  }
  words->end();
  return built;
}

// Requires numbers to agree with the graph and the call that the function is for. Whatever follows
// relies on them: they are indices, sizes and counts.
class Requirements {
 public:
  explicit Requirements(const FunctionUse& use) : use_(use) {}

  // A function differs from the request in the settings that a build chooses.
  void check(const Settings& settings) const {
    const Settings& requested = use_.settings;
    require(settings.num_threads == requested.num_threads || settings.num_threads == 1);
    require(settings.precision == requested.precision || settings.precision == Precision::kFloat32);
    require(settings.weight_format == requested.weight_format);
    require(settings.parts >= 1 && settings.parts <= kMaxParts);
    const int max_streams = std::max(requested.streams, threads_of(requested));
    require(settings.streams >= 0 && settings.streams <= max_streams);
    require(settings.streams > 0 || settings.num_threads == 1);
    require(settings.concurrent_runs == requested.concurrent_runs);
    require(settings.device.empty() == use_.header.is_on_cpu());
    require(settings.num_pinned <= kMaxPinned);
    require(settings.num_pinned == 0 || (settings.parts == 1 && settings.streams <= 1));
  }

  void check(const BuiltFunction& built) const {
    const size_t num_inputs = use_.header.num_inputs;
    for (size_t input : built.parameter_inputs) require(input < num_inputs + built.samples.size());
    for (const RandomSample& sample : built.samples) check(sample);
    for (const RangeCheck& each : built.checks) check(each);
    check_symbols(built.symbolic_dims);
    check(built.updates);
  }

  // Requires parameters and results of the imported model to be those of the graph and the call.
  void check_model(const BuiltFunction& built) const {
    std::vector<ResultType> parameters;
    for (size_t input : built.parameter_inputs) {
      const bool is_input = input < use_.header.num_inputs;
      parameters.push_back(is_input ? type_of(*use_.inputs[input])
                                    : built.samples[input - use_.header.num_inputs].type());
    }
    require(built.function->accepts(parameters));
    // A model of static shapes is bound to memory without a look at the shapes of the call.
    require(!has_symbolic_shape(built) || built.function->has_dynamic_shapes());
    const size_t num_results = built.function->results().size();
    const size_t num_values = num_results + built.function->settings().num_pinned;
    for (const Update& step : built.updates.steps) {
      for (const auto* operands : {&step.gradients, &step.factors, &step.parameters}) {
        for (int64_t operand : *operands) {
          require(operand >= 0 || static_cast<uint64_t>(-1 - operand) < num_values);
        }
      }
    }
    check_states(built);
  }

 private:
  // More gradients than a program has.
  static constexpr size_t kMaxPinned = size_t{1} << 24;
  // More than a batch is ever divided into.
  static constexpr int kMaxParts = 1 << 16;
  // More elements than the random numbers of an operator have.
  static constexpr size_t kMaxElements = size_t{1} << 32;

  static void check(const RandomSample& sample) {
    const auto distribution = static_cast<int>(sample.distribution);
    require(distribution >= 0 && distribution <= static_cast<int>(Distribution::normal));
    size_t count = 1;
    for (size_t size : sample.shape) {
      require(!__builtin_mul_overflow(count, size, &count) && count <= kMaxElements);
    }
  }

  void check(const RangeCheck& each) const {
    require(each.input < use_.header.num_inputs);
    const auto dtype = use_.header.dtypes[each.input];
    require(dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32);
    require(!each.low.empty() && each.low.size() == each.high.size());
    const auto code = static_cast<int>(each.code);
    require(code >= 0 && code <= static_cast<int>(ErrorCode::kOutOfBounds));
  }

  // There may be a symbol for each dimension of each input, and for each element that is read by
  // value: see symbolic_signature() in function_store.cc.
  void check_symbols(const std::vector<int>& symbols) const {
    if (symbols.empty()) return;
    size_t num_values = 0;
    for (size_t input : use_.header.value_inputs) {
      num_values += static_cast<size_t>(use_.inputs[input]->numel());
    }
    require(symbols.size() >= num_dims() && symbols.size() <= num_dims() + num_values);
    for (int symbol : symbols) {
      require(symbol == SymbolicSignature::kFixed ||
              (symbol >= 0 && static_cast<size_t>(symbol) < symbols.size()));
    }
  }

  // Requires results for all outputs and states. The new value of a state has the dtype of the old
  // one; it may have another shape.
  void check_states(const BuiltFunction& built) const {
    const auto& results = built.function->results();
    const size_t num_states = use_.header.num_states;
    require(results.size() >= use_.header.num_outputs);
    const auto indices = state_result_indices(built.updates, use_.header.num_outputs, num_states);
    for (size_t state = 0; state < num_states; ++state) {
      if (indices[state] == kNoResult) continue;
      require(indices[state] < results.size());
      const auto& old = *use_.inputs[use_.header.num_read_only() + state];
      require(results[indices[state]].element == type_of(old).element);
    }
  }

  // The number of dimensions of all inputs.
  size_t num_dims() const {
    size_t count = 0;
    for (const auto* input : use_.inputs) count += static_cast<size_t>(input->dims().size());
    return count;
  }

  bool has_symbolic_shape(const BuiltFunction& built) const {
    const auto& symbols = built.symbolic_dims;
    const auto end =
        symbols.begin() + static_cast<std::ptrdiff_t>(built.is_symbolic() * num_dims());
    return std::any_of(symbols.begin(), end,
                       [](int symbol) { return symbol != SymbolicSignature::kFixed; });
  }

  void check(const Updates& updates) const {
    require(updates.num_threads >= 0 && updates.num_threads <= threads_of(use_.settings));
    const auto num_inputs = static_cast<int64_t>(use_.header.num_inputs);
    for (const Update& step : updates.steps) {
      for (size_t state : step.states) require(state < use_.header.num_states);
      for (const auto* operands : {&step.gradients, &step.factors, &step.parameters}) {
        for (int64_t operand : *operands) require(operand < num_inputs);
      }
      require_valid(step);
    }
  }

  const FunctionUse& use_;
};

BuiltFunction to_built_function(const StoredFunction& stored, const FunctionUse& use) {
  WordReader words(stored.words);
  const Requirements requirements(use);
  const Settings settings = read_settings(&words);
  requirements.check(settings);
  BuiltFunction built = read_built_function(&words);
  requirements.check(built);
  built.function = std::make_unique<OvFunction>(stored.blob, settings);
  // By now the plugin has packed most constants into memory of its own, so few pages of the blob
  // are read again.
  release_pages(stored.blob);
  requirements.check_model(built);
  return built;
}

}  // namespace

std::optional<BuiltFunction> load_function(const DiskKey& key, const FunctionUse& use) {
  try {
    inject_fault(Step::kLoad);
    auto stored = find_file(key);
    if (!stored) return std::nullopt;
    return to_built_function(*stored, use);
  } catch (const std::exception&) {
    // A file that cannot be used is treated as missing: the function is built, and its file
    // replaced.
    return std::nullopt;
  }
}

namespace {

// Returns a function that writes the blob of `built` to a file, and throws if `is_valid` returns
// false.
auto saving(const BuiltFunction& built, const IsValid& is_valid) {
  return [&](const char* path) {
    inject_fault(Step::kStore);
    built.function->save(path);
    if (is_valid && !is_valid()) throw NgraphError("weights were written meanwhile");
  };
}

}  // namespace

void store_function(const DiskKey& key, const BuiltFunction& built, const IsValid& is_valid) {
  store_file(key, words_of(built), saving(built, is_valid));
}

void store_function_in(const std::string& folder, const Digest& identity, const DiskKey& key,
                       const BuiltFunction& built, const IsValid& is_valid) {
  store_file_in(folder, identity, key, words_of(built), saving(built, is_valid));
}

}  // namespace paddle_ngraph
