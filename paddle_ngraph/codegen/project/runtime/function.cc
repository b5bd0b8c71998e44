#include "runtime/function.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <openvino/openvino.hpp>

#include "core/engine/size_guards.h"
#include "core/ov/extension_ops.h"
#include "core/ov/trim_memory.h"

namespace native {

using paddle_ngraph::OvFunction;

namespace {

constexpr int64_t kUnknown = -1;  // a dynamic size without a value yet
constexpr int64_t kMostOpen = 1000;
constexpr char kWideIntegers[] = "--wide-integers (wide_integers=True)";

// Reads models; the core compiles functions by its own ov::Core.
ov::Core& reader() {
  static ov::Core core = [] {
    ov::Core made;
    made.add_extension(paddle_ngraph::extension_ops());
    return made;
  }();
  return core;
}

paddle_ngraph::Draw parsed_draw(const Json& row) {
  return {static_cast<paddle_ngraph::Distribution>(row.at("distribution").whole()),
          static_cast<float>(row.at("a").number()), static_cast<float>(row.at("b").number()),
          row.at("seed").whole(), row.at("shape").sizes()};
}

paddle_ngraph::Update parsed_update(const Json& row) {
  std::vector<double> attributes;
  for (const auto& value : row.at("attributes").list()) attributes.push_back(value.number());
  return {static_cast<int>(row.at("optimizer").whole()),
          std::move(attributes),
          row.at("states").sizes(),
          row.at("gradients").numbers(),
          row.at("factors").numbers(),
          row.at("parameters").numbers()};
}

paddle_ngraph::Floats floats(const Tensor& tensor) {
  if (tensor.type != ElementType::f32) return {nullptr, 0};
  return {tensor.data<float>(), tensor.count()};
}

// The tensor if no other holder shares its memory, otherwise a copy.
Tensor own(const Tensor& tensor) {
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

// The first element that overflows int32.
std::optional<int64_t> too_wide(const Tensor& tensor) {
  if (tensor.type != ElementType::i64) return std::nullopt;
  const auto* values = tensor.data<int64_t>();
  const auto* end = values + tensor.count();
  const auto* found =
      std::find_if(values, end, [](int64_t v) { return v != static_cast<int32_t>(v); });
  return found == end ? std::nullopt : std::optional<int64_t>(*found);
}

std::vector<std::string> texts(const Json& row) {
  std::vector<std::string> made;
  for (const auto& text : row.list()) made.push_back(text.text());
  return made;
}

}  // namespace

Variant::Variant(const std::string& folder, const Json& description, Threads threads)
    : model_(folder + "/" + description.at("model").text()),
      constants_(folder + "/" + description.at("constants").text()),
      guards_(description.at("guards").numbers()),
      parameters_(description.at("parameters").sizes()) {
  for (const auto& shape : description.at("shapes").list()) {
    shapes_.push_back(shape.numbers());
    for (int64_t size : shapes_.back()) {
      if (size < -kMostOpen) throw Error("there are too many open sizes");
      if (size < 0) num_open_ = std::max(num_open_, static_cast<size_t>(-size));
    }
  }
  for (const auto& row : description.at("draws").list()) draws_.push_back(parsed_draw(row));
  for (size_t parameter : parameters_) {
    if (parameter >= shapes_.size() + draws_.size()) throw Error("a parameter has no input");
  }
  for (const auto& row : description.at("updates").list()) {
    updates_.steps.push_back(parsed_update(row));
  }
  num_outputs_ = static_cast<size_t>(description.at("outputs").whole());
  places_ = paddle_ngraph::results_of_states(updates_, num_outputs_,
                                             static_cast<size_t>(description.at("states").whole()));
  settings_.num_threads = threads.per_run;
  settings_.streams = threads.streams;
  if (threads.per_run > 0) updates_.num_threads = std::max(1, threads.per_run / threads.streams);
  if (!updates_.steps.empty()) updater_ = std::make_unique<paddle_ngraph::Updater>(updates_);
}

bool Variant::fits(const std::vector<const Tensor*>& inputs) const {
  if (inputs.size() != shapes_.size()) return false;
  std::vector<int64_t> open(num_open_, kUnknown);
  const auto agrees = [&](int64_t wanted, int64_t size) {
    if (wanted >= 0) return wanted == size;
    int64_t& known = open[static_cast<size_t>(-1 - wanted)];
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
  return paddle_ngraph::guards_hold(guards_, open);
}

OvFunction& Variant::function() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (function_ == nullptr) {
    try {
      const auto model = reader().read_model(model_, constants_);
      function_ = std::make_unique<OvFunction>(model.get(), settings_);
    } catch (const std::exception& error) {
      throw Error(concat(model_, " cannot be compiled: ", last_line(error.what())));
    }
    function_->require_elements();
    paddle_ngraph::return_free_memory();
  }
  return *function_;
}

Tensors Variant::draw(size_t num_inputs, Stream* stream) const {
  Tensors drawn;
  for (size_t i = 0; i < draws_.size(); ++i) {
    const bool is_read =
        std::find(parameters_.begin(), parameters_.end(), num_inputs + i) != parameters_.end();
    const auto type = draws_[i].type();
    drawn.push_back(is_read ? allocate(type.element, type.shape) : Tensor());
    paddle_ngraph::draw(draws_[i], stream, drawn.back().memory.get());
  }
  return drawn;
}

void Variant::require_32_bits(const std::vector<const Tensor*>& inputs,
                              const std::vector<std::string>& names) const {
  for (size_t parameter : parameters_) {
    if (parameter >= inputs.size()) continue;
    if (const auto found = too_wide(*inputs[parameter])) {
      throw Error(
          concat(names.at(parameter), " holds ", *found,
                 ", and intervals compute with 32 bits; in a project that is generated with ",
                 kWideIntegers, " only positions and lengths have to fit"));
    }
  }
}

Tensors Variant::run(const std::vector<const Tensor*>& inputs, Stream* stream) {
  const Tensors drawn = draw(inputs.size(), stream);
  std::vector<const Tensor*> given;
  for (size_t parameter : parameters_) {
    const bool is_input = parameter < inputs.size();
    given.push_back(is_input ? inputs[parameter] : &drawn[parameter - inputs.size()]);
  }
  Tensors results = function().has_open_shapes() ? run_open(given) : run_closed(given);
  if (updater_ != nullptr) update(inputs, &results);
  return results;
}

void Variant::update(const std::vector<const Tensor*>& inputs, Tensors* results) {
  const size_t num_inputs = inputs.size() - places_.size();
  std::vector<paddle_ngraph::Floats> given, made, written(places_.size());
  for (const Tensor* input : inputs) given.push_back(floats(*input));
  for (const Tensor& tensor : *results) made.push_back(floats(tensor));
  const auto first_read = static_cast<std::ptrdiff_t>(num_results());
  Tensors read(results->begin() + first_read, results->end());
  Tensors updated(results->begin(), results->begin() + static_cast<std::ptrdiff_t>(num_outputs_));
  for (size_t state = 0; state < places_.size(); ++state) {
    const bool is_written = places_[state] == paddle_ngraph::kNoResult;
    updated.push_back(is_written ? own(*inputs[num_inputs + state]) : (*results)[places_[state]]);
    if (is_written) written[state] = floats(updated.back());
  }
  updater_->prepare(given, made, written).write();
  *results = std::move(updated);
  for (size_t i = 0; i < read.size(); ++i) keep(num_results() + i, std::move(read[i]));
}

size_t Variant::num_results() const {
  const auto written = std::count(places_.begin(), places_.end(), paddle_ngraph::kNoResult);
  return num_outputs_ + places_.size() - static_cast<size_t>(written);
}

Tensors Variant::run_closed(const std::vector<const Tensor*>& given) {
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

Tensors Variant::run_open(const std::vector<const Tensor*>& given) {
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
    if (number < kept_.size() && kept_[number].memory.use_count() == 1) {
      Tensor found = std::exchange(kept_[number], Tensor());
      if (found.type == type.element && found.shape == type.shape) return found;
    }
  }
  return allocate(type.element, type.shape);
}

void Variant::give(size_t number, Tensor tensor) {
  if (number >= num_outputs_) number = places_.at(number - num_outputs_);
  if (number != paddle_ngraph::kNoResult) keep(number, std::move(tensor));
}

void Variant::keep(size_t number, Tensor tensor) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (kept_.size() <= number) kept_.resize(number + 1);
  kept_[number] = std::move(tensor);
}

Function::Function(const std::string& folder, const Json& description, Threads threads)
    : name_(description.at("name").text()),
      inputs_(texts(description.at("inputs"))),
      too_wide_(texts(description.at("too_wide"))) {
  for (const auto& variant : description.at("variants").list()) {
    variants_.emplace_back(folder, variant, threads);
  }
  if (variants_.empty()) throw Error("an interval has no function");
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
    variant->require_32_bits(inputs, inputs_);
    return variant->run(inputs, stream);
  } catch (const paddle_ngraph::InvalidInput& error) {
    const std::string said = error.what();
    for (const auto& sentence : too_wide_) {
      if (said.rfind(sentence, 0) != 0) continue;
      throw Error(concat(sentence, " A project that is generated with ", kWideIntegers,
                         " computes it with 64"));
    }
    throw;
  }
}

}  // namespace native
