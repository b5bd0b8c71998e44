#include "runtime/function.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include <openvino/openvino.hpp>

#include "core/engine/size_guards.h"
#include "core/ov/extension_ops.h"
#include "core/ov/trim_memory.h"
#include "runtime/npy.h"

namespace native {

using paddle_ngraph::OvFunction;

namespace {

constexpr int64_t kUnknown = -1;  // size of a symbol for which no input has given a size yet
constexpr int64_t kMaxSymbols = 1000;
constexpr int64_t kMaxCount = 1 << 20;  // more outputs, or states, than any function has
constexpr char kWideIntegers[] = "--wide-integers (wide_integers=True)";

// The OpenVINO core that reads model files. Another one, in the core of the package, compiles
// functions.
ov::Core& reader() {
  static ov::Core core = [] {
    ov::Core result;
    result.add_extension(paddle_ngraph::extension_ops());
    return result;
  }();
  return core;
}

// An integer of the manifest from 0 to `most`.
int64_t parsed_number(const Json& row, const std::string& key, int64_t most) {
  const int64_t number = row.at(key).integer();
  if (number < 0 || number > most) throw Error(concat("'", key, "' is out of range: ", number));
  return number;
}

paddle_ngraph::RandomSample parsed_sample(const Json& row) {
  constexpr auto kLast = static_cast<int64_t>(paddle_ngraph::Distribution::normal);
  const int64_t distribution = parsed_number(row, "distribution", kLast);
  paddle_ngraph::RandomSample sample{static_cast<paddle_ngraph::Distribution>(distribution),
                                     static_cast<float>(row.at("a").number()),
                                     static_cast<float>(row.at("b").number()),
                                     row.at("seed").integer(), row.at("shape").sizes()};
  require_memory(sample.type().element, sample.shape);
  return sample;
}

paddle_ngraph::Update parsed_update(const Json& row) {
  std::vector<double> attributes;
  for (const auto& value : row.at("attributes").list()) attributes.push_back(value.number());
  return {static_cast<int>(parsed_number(row, "optimizer", kMaxCount)),
          std::move(attributes),
          row.at("states").sizes(),
          row.at("gradients").numbers(),
          row.at("factors").numbers(),
          row.at("parameters").numbers()};
}

paddle_ngraph::FloatSpan floats(const Tensor& tensor) {
  if (tensor.type != ElementType::f32) return {nullptr, 0};
  return {tensor.data<float>(), tensor.count()};
}

// Returns the tensor itself if nothing else refers to its memory, otherwise a copy.
Tensor unshared(const Tensor& tensor) {
  if (tensor.memory.use_count() == 1) return tensor;
  Tensor copy = allocate(tensor.type, tensor.shape);
  std::memcpy(copy.memory.get(), tensor.memory.get(), tensor.bytes());
  return copy;
}

// The last line of an error of OpenVINO, its reason; the lines before are source locations.
std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.rfind('\n') + 1);
}

// The first element of an int64 tensor that is not representable in int32; nothing if all are.
std::optional<int64_t> int32_overflow(const Tensor& tensor) {
  if (tensor.type != ElementType::i64) return std::nullopt;
  const auto* values = tensor.data<int64_t>();
  const auto* end = values + tensor.count();
  const auto* found =
      std::find_if(values, end, [](int64_t v) { return v != static_cast<int32_t>(v); });
  return found == end ? std::nullopt : std::optional<int64_t>(*found);
}

ElementType element_type(const ov::element::Type& type) {
  const std::string name = type.to_string();
  for (const auto& row : paddle_ngraph::kElementTypes) {
    if (name == row.ngraph) return row.element;
  }
  throw Error(concat("a parameter is ", name));
}

// Whether a parameter of this shape takes tensors of `sizes`, of which negative ones are open. A
// run passes no sizes to a model without open ones.
bool takes(const ov::PartialShape& shape, const std::vector<int64_t>& sizes, bool is_dynamic) {
  if (shape.rank().is_dynamic()) return is_dynamic;
  if (shape.size() != sizes.size()) return false;
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] < 0 ? !is_dynamic : !shape[axis].compatible(sizes[axis])) return false;
  }
  return true;
}

std::vector<std::string> texts(const Json& row) {
  std::vector<std::string> result;
  for (const auto& text : row.list()) result.push_back(text.text());
  return result;
}

}  // namespace

Variant::Variant(const std::string& folder, const Json& description, Threads threads)
    : model_(path_in(folder, description.at("model").text())),
      constants_(path_in(folder, description.at("constants").text())),
      guards_(description.at("guards").numbers()),
      parameters_(description.at("parameters").sizes()) {
  for (const auto& shape : description.at("shapes").list()) {
    shapes_.push_back(shape.numbers());
    for (int64_t size : shapes_.back()) {
      if (size < -kMaxSymbols) throw Error("there are too many open sizes");
      if (size < 0) num_symbols_ = std::max(num_symbols_, static_cast<size_t>(-size));
    }
  }
  for (const auto& row : description.at("draws").list())
    random_samples_.push_back(parsed_sample(row));
  for (size_t parameter : parameters_) {
    if (parameter >= shapes_.size() + random_samples_.size())
      throw Error("a parameter has no input");
  }
  parse_updates(description);
  settings_.num_threads = threads.per_run;
  settings_.streams = threads.streams;
  if (threads.per_run > 0) updates_.num_threads = std::max(1, threads.per_run / threads.streams);
  if (!updates_.steps.empty()) updater_ = std::make_unique<paddle_ngraph::Updater>(updates_);
}

void Variant::parse_updates(const Json& description) {
  num_outputs_ = static_cast<size_t>(parsed_number(description, "outputs", kMaxCount));
  const auto num_states = static_cast<size_t>(parsed_number(description, "states", kMaxCount));
  if (num_states > shapes_.size()) throw Error("a state is no input");
  for (const auto& row : description.at("updates").list()) {
    paddle_ngraph::Update update = parsed_update(row);
    const auto has_state = [&](size_t state) { return state < num_states; };
    if (update.states.empty() ||
        !std::all_of(update.states.begin(), update.states.end(), has_state)) {
      throw Error("an optimizer writes no state");
    }
    updates_.steps.push_back(std::move(update));
  }
  state_results_ = paddle_ngraph::state_result_indices(updates_, num_outputs_, num_states);
}

bool Variant::fits(const std::vector<const Tensor*>& inputs) const {
  if (inputs.size() != shapes_.size()) return false;
  std::vector<int64_t> sizes(num_symbols_, kUnknown);
  const auto agrees = [&](int64_t wanted, int64_t size) {
    if (wanted >= 0) return wanted == size;
    int64_t& known = sizes[static_cast<size_t>(-1 - wanted)];
    if (known == kUnknown) known = size;
    return known == size;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Shape& given = inputs[i]->shape;
    if (given.size() != shapes_[i].size()) return false;
    for (size_t axis = 0; axis < given.size(); ++axis) {
      if (!agrees(shapes_[i][axis], static_cast<int64_t>(given[axis]))) return false;
    }
  }
  return paddle_ngraph::guards_hold(guards_, sizes);
}

OvFunction& Variant::function() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (function_ == nullptr) {
    try {
      const auto model = reader().read_model(model_, constants_);
      check(*model);
      function_ = std::make_unique<OvFunction>(model.get(), settings_);
    } catch (const std::exception& error) {
      throw Error(concat(model_, " cannot be compiled: ", last_line(error.what())));
    }
    function_->require_elements();
    paddle_ngraph::trim_free_memory();
  }
  return *function_;
}

void Variant::check(const ov::Model& model) {
  const auto& parameters = model.get_parameters();
  const auto& results = model.get_results();
  const auto is_open = [](const auto& node) {
    return node->get_output_partial_shape(0).is_dynamic();
  };
  const bool is_dynamic = std::any_of(parameters.begin(), parameters.end(), is_open) ||
                          std::any_of(results.begin(), results.end(), is_open);
  if (parameters.size() != parameters_.size()) {
    throw Error(concat("it has ", parameters.size(), " parameters, and its description ",
                       parameters_.size()));
  }
  parameter_types_.clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    std::vector<int64_t> sizes;
    if (parameters_[i] < shapes_.size()) {
      sizes = shapes_[parameters_[i]];
    } else {
      const Shape& shape = random_samples_[parameters_[i] - shapes_.size()].shape;
      sizes.assign(shape.begin(), shape.end());
    }
    if (!takes(parameters[i]->get_partial_shape(), sizes, is_dynamic)) {
      throw Error(concat("its parameter ", i, " has another shape than in its description"));
    }
    parameter_types_.push_back(element_type(parameters[i]->get_element_type()));
  }
  // Results that no output or state takes are read by updates.
  const bool may_have_more = !updates_.steps.empty();
  if (results.size() < num_results() || (results.size() > num_results() && !may_have_more)) {
    throw Error(concat("it has ", results.size(), " results, and its description ", num_results()));
  }
  const size_t first_state = shapes_.size() - state_results_.size();
  for (size_t i = 0; i < state_results_.size(); ++i) {
    const size_t result = state_results_[i];
    if (result != paddle_ngraph::kNoResult && !takes(results[result]->get_output_partial_shape(0),
                                                     shapes_[first_state + i], is_dynamic)) {
      throw Error(
          concat("its result ", result, " has another shape than the state that it becomes"));
    }
  }
}

void Variant::require_types(const std::vector<const Tensor*>& given) const {
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i]->type == parameter_types_[i]) continue;
    throw Error(concat(model_, " takes ", name_of(parameter_types_[i]), " and was given ",
                       name_of(given[i]->type)));
  }
}

Tensors Variant::sample(size_t num_inputs, Stream* stream) const {
  Tensors samples;
  for (size_t i = 0; i < random_samples_.size(); ++i) {
    const bool is_read =
        std::find(parameters_.begin(), parameters_.end(), num_inputs + i) != parameters_.end();
    const auto type = random_samples_[i].type();
    samples.push_back(is_read ? allocate(type.element, type.shape) : Tensor());
    paddle_ngraph::sample(random_samples_[i], stream, samples.back().memory.get());
  }
  return samples;
}

void Variant::require_int32(const std::vector<const Tensor*>& inputs,
                            const std::vector<std::string>& names) const {
  for (size_t parameter : parameters_) {
    if (parameter >= inputs.size()) continue;
    if (const auto found = int32_overflow(*inputs[parameter])) {
      throw Error(
          concat(names.at(parameter), " holds ", *found,
                 ", and intervals compute with 32 bits; in a project that is generated with ",
                 kWideIntegers, " only positions and lengths have to fit"));
    }
  }
}

Tensors Variant::run(const std::vector<const Tensor*>& inputs, Stream* stream) {
  // Read and checked first: the description, which determines the samples, has to match the model.
  const bool is_dynamic = function().has_dynamic_shapes();
  const Tensors samples = sample(inputs.size(), stream);
  std::vector<const Tensor*> given;
  for (size_t parameter : parameters_) {
    const bool is_input = parameter < inputs.size();
    given.push_back(is_input ? inputs[parameter] : &samples[parameter - inputs.size()]);
  }
  require_types(given);
  Tensors results = is_dynamic ? run_dynamic(given) : run_static(given);
  if (updater_ != nullptr) update(inputs, &results);
  return results;
}

void Variant::update(const std::vector<const Tensor*>& inputs, Tensors* results) {
  const size_t num_inputs = inputs.size() - state_results_.size();
  std::vector<paddle_ngraph::FloatSpan> given, result_spans, written(state_results_.size());
  for (const Tensor* input : inputs) given.push_back(floats(*input));
  for (const Tensor& tensor : *results) result_spans.push_back(floats(tensor));
  const auto first_read = static_cast<std::ptrdiff_t>(num_results());
  Tensors read(results->begin() + first_read, results->end());
  Tensors updated(results->begin(), results->begin() + static_cast<std::ptrdiff_t>(num_outputs_));
  for (size_t state = 0; state < state_results_.size(); ++state) {
    const bool is_written = state_results_[state] == paddle_ngraph::kNoResult;
    updated.push_back(is_written ? unshared(*inputs[num_inputs + state])
                                 : (*results)[state_results_[state]]);
    if (is_written) written[state] = floats(updated.back());
  }
  updater_->prepare(given, result_spans, written).write();
  *results = std::move(updated);
  for (size_t i = 0; i < read.size(); ++i) retain(num_results() + i, std::move(read[i]));
}

size_t Variant::num_results() const {
  const auto written =
      std::count(state_results_.begin(), state_results_.end(), paddle_ngraph::kNoResult);
  return num_outputs_ + state_results_.size() - static_cast<size_t>(written);
}

Tensors Variant::run_static(const std::vector<const Tensor*>& given) {
  std::vector<const void*> inputs;
  for (const Tensor* tensor : given) inputs.push_back(tensor->memory.get());
  Tensors results;
  std::vector<void*> outputs;
  for (const auto& type : function().results()) {
    results.push_back(take(results.size(), type));
    outputs.push_back(results.back().memory.get());
  }
  function().run(inputs, outputs);
  return results;
}

Tensors Variant::run_dynamic(const std::vector<const Tensor*>& given) {
  std::vector<paddle_ngraph::Input> inputs;
  for (const Tensor* tensor : given) inputs.push_back({tensor->memory.get(), tensor->shape});
  const auto& types = function().results();
  Tensors results(types.size());
  function().run(inputs, [&](size_t i, const Shape& shape) {
    results[i] = allocate(types[i].element, shape);
    return results[i].memory.get();
  });
  return results;
}

Tensor Variant::take(size_t number, const paddle_ngraph::ResultType& type) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (number < reusable_.size() && reusable_[number].memory.use_count() == 1) {
      Tensor found = std::exchange(reusable_[number], Tensor());
      if (found.type == type.element && found.shape == type.shape) return found;
    }
  }
  return allocate(type.element, type.shape);
}

void Variant::recycle(size_t number, Tensor tensor) {
  if (number >= num_outputs_) number = state_results_.at(number - num_outputs_);
  if (number != paddle_ngraph::kNoResult) retain(number, std::move(tensor));
}

void Variant::retain(size_t number, Tensor tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (reusable_.size() <= number) reusable_.resize(number + 1);
  reusable_[number] = std::move(tensor);
}

Function::Function(const std::string& folder, const Json& description, Threads threads)
    : name_(description.at("name").text()), inputs_(texts(description.at("inputs"))) {
  for (const auto& variant : description.at("variants").list()) {
    variants_.emplace_back(folder, variant, threads);
  }
  if (variants_.empty()) throw Error("an interval has no function");
}

bool Function::is_stochastic() const {
  return std::any_of(variants_.begin(), variants_.end(), std::mem_fn(&Variant::is_stochastic));
}

Variant& Function::variant(const std::vector<const Tensor*>& inputs) {
  for (auto& variant : variants_) {
    if (variant.fits(inputs)) return variant;
  }
  std::string shapes;
  bool is_empty = false;
  for (const Tensor* input : inputs) {
    shapes += " " + text_of(input->shape);
    is_empty |= input->count() == 0;
  }
  throw Error(
      concat(name_, " was not generated for inputs of the shapes", shapes,
             is_empty ? ": it computes nothing that is empty" : ": generate it with such shapes"));
}

Tensors Function::run(Variant* variant, const std::vector<const Tensor*>& inputs,
                      Stream* stream) const {
  try {
    variant->require_int32(inputs, inputs_);
    return variant->run(inputs, stream);
  } catch (const paddle_ngraph::InvalidInput& error) {
    if (error.code() != paddle_ngraph::ErrorCode::kInt32Overflow) throw;
    throw Error(concat(error.what(), " A project that is generated with ", kWideIntegers,
                       " computes it with 64"));
  }
}

}  // namespace native
