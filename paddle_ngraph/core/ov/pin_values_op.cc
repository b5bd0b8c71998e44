#include "core/ov/pin_values_op.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <openvino/op/result.hpp>
#include <openvino/runtime/properties.hpp>

#include "core/ov/pinned_values.h"

namespace paddle_ngraph {

namespace {

// The name of the PinValues node, by which it is found in a compiled model.
constexpr char kName[] = "paddle_ngraph_hold";

// Keys under which the plugin reports the execution order and type of a compiled node.
constexpr char kExecOrderKey[] = "execOrder", kLayerTypeKey[] = "layerType";

std::string runtime_info(const ov::Node& node, const char* name) {
  const auto& all = node.get_rt_info();
  const auto found = all.find(name);
  return found == all.end() ? std::string() : found->second.as<std::string>();
}

int execution_index(const ov::Node& node) { return std::stoi(runtime_info(node, kExecOrderKey)); }

bool is_result(const ov::Node& node) { return runtime_info(node, kLayerTypeKey) == "Output"; }

}  // namespace

std::shared_ptr<PinValues> PinValues::of(const ov::Model& model) {
  const auto& results = model.get_results();
  if (results.empty()) return nullptr;
  return std::dynamic_pointer_cast<PinValues>(results.back()->get_input_node_shared_ptr(0));
}

void PinValues::remove_from(ov::Model* model) {
  const auto pin = of(*model);
  model->remove_result(model->get_results().back());
  ov::ResultVector results;
  for (size_t i = 0; i < pin->count(); ++i) {
    results.push_back(std::make_shared<ov::op::v0::Result>(pin->input_value(i)));
  }
  model->add_results(results);
}

bool PinValues::executes_last(const ov::CompiledModel& model) {
  if (model.get_property(ov::num_streams) > 1) return false;
  const auto nodes = model.get_runtime_model()->get_ops();
  const auto pin = std::find_if(nodes.begin(), nodes.end(), [](const auto& node) {
    return node->get_friendly_name() == kName;
  });
  if (pin == nodes.end()) return false;
  const int last = execution_index(**pin);
  return std::all_of(nodes.begin(), nodes.end(), [&](const auto& node) {
    return node == *pin || execution_index(*node) < last || is_result(*node);
  });
}

void PinValues::infer() {
  const size_t inputs = get_input_size();
  require(attributes().count > 0 && count() <= inputs, "holds ", attributes().count, " of ", inputs,
          " inputs");
  for (size_t i = 0; i < count(); ++i) {
    require(get_input_element_type(i) == ov::element::f32, "input ", i, " is ",
            get_input_element_type(i), ", not f32");
  }
  set_output_type(0, ov::element::u8, ov::Shape{count() * sizeof(FloatSpan)});
  // The name is set here and not where the operator is created: an operator that is read from a
  // file needs the name too.
  set_friendly_name(kName);
}

void PinValues::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  auto* out = outputs->front().data<uint8_t>();
  for (size_t i = 0; i < count(); ++i) {
    const FloatSpan held{const_cast<float*>(inputs[i].data<const float>()), inputs[i].get_size()};
    std::memcpy(out + i * sizeof(held), &held, sizeof(held));
  }
}

}  // namespace paddle_ngraph
