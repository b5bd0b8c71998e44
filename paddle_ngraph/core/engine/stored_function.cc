#include "core/engine/stored_function.h"

#include <cstring>
#include <type_traits>

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

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

class WordReader {
 public:
  explicit WordReader(const std::vector<int64_t>& words) : words_(words) {}

  template <typename Number>
  Number next() {
    const int64_t word = words_.at(at_++);
    if constexpr (std::is_floating_point_v<Number>) {
      double value;
      std::memcpy(&value, &word, sizeof(value));
      return static_cast<Number>(value);
    } else {
      return static_cast<Number>(word);
    }
  }

  template <typename Number>
  std::vector<Number> list() {
    std::vector<Number> numbers(next<size_t>());
    for (auto& number : numbers) number = next<Number>();
    return numbers;
  }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

std::vector<int64_t> words_of(const BuiltFunction& built) {
  WordWriter words;
  const Settings& settings = built.function->settings();
  words.add(settings.num_threads);
  words.add(static_cast<int>(settings.precision));
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

BuiltFunction to_built_function(StoredFunction stored) {
  WordReader words(stored.words);
  Settings settings;
  settings.num_threads = words.next<int>();
  settings.precision = static_cast<Precision>(words.next<int>());
  settings.fuses_loops = words.next<int>() != 0;
  settings.parts = words.next<int>();
  settings.streams = words.next<int>();
  settings.concurrent_runs = words.next<int>();
  settings.shares_remainder = words.next<int>() != 0;
  settings.device = words.list<char>();
  settings.num_pinned = words.next<size_t>();
  settings.deferred_errors_id = words.next<int64_t>();
  BuiltFunction built;
  built.parameter_inputs = words.list<size_t>();
  built.symbolic_dims = words.list<int>();
  built.guards = words.list<int64_t>();
  built.samples.resize(words.next<size_t>());
  for (RandomSample& sample : built.samples) {
    sample.distribution = static_cast<Distribution>(words.next<int>());
    sample.a = words.next<float>();
    sample.b = words.next<float>();
    sample.seed = words.next<int64_t>();
    sample.shape = words.list<size_t>();
  }
  built.checks.resize(words.next<size_t>());
  for (RangeCheck& check : built.checks) {
    check.input = words.next<size_t>();
    check.low = words.list<int64_t>();
    check.high = words.list<int64_t>();
    check.ignored = words.list<int64_t>();
    const auto message = words.list<char>();
    check.message.assign(message.begin(), message.end());
    check.code = static_cast<ErrorCode>(words.next<int>());
    check.op_id = words.next<int64_t>();
  }
  built.updates.num_threads = words.next<int>();
  built.updates.steps.resize(words.next<size_t>());
  for (Update& step : built.updates.steps) {
    step.optimizer = words.next<int>();
    step.attributes = words.list<double>();
    step.states = words.list<size_t>();
    step.gradients = words.list<int64_t>();
    step.factors = words.list<int64_t>();
    step.parameters = words.list<int64_t>();
  }
  built.function = std::make_unique<OvFunction>(stored.blob, settings);
  // The plugin has packed most constants, so few pages of the blob are read again.
  release_pages(stored.blob);
  return built;
}

}  // namespace

std::optional<BuiltFunction> load_function(const DiskKey& key) {
  try {
    inject_fault(Step::kLoad);
    auto stored = find_file(key);
    if (!stored) return std::nullopt;
    return to_built_function(std::move(*stored));
  } catch (const std::exception&) {
    // A file that cannot be used is treated as missing: a function that is built replaces it.
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

void store_function_in(const std::string& folder, const DiskKey& key, const BuiltFunction& built,
                       const IsValid& is_valid) {
  store_file_in(folder, key, words_of(built), saving(built, is_valid));
}

}  // namespace paddle_ngraph
