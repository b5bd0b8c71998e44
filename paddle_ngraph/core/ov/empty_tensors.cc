#include "core/ov/empty_tensors.h"

#include <algorithm>

#include <openvino/op/util/multi_subgraph_base.hpp>

#include "core/common/error.h"

namespace paddle_ngraph {

namespace {

bool is_empty(const ov::PartialShape& shape) {
  return shape.rank().is_static() &&
         std::any_of(shape.begin(), shape.end(),
                     [](const ov::Dimension& size) { return size.is_static() && size == 0; });
}

bool is_constant(const ov::Node& node) {
  return node.get_type_info().name == std::string("Constant");
}

// Whether a value is a constant list of integers: converters write an empty one for no axes or for
// a shape of rank 0.
bool is_list(const ov::Output<ov::Node>& value) {
  return is_constant(*value.get_node()) && value.get_partial_shape().rank() == 1 &&
         value.get_element_type().is_integral_number();
}

bool reads_empty_tensor(const ov::Node& node) {
  const auto values = node.input_values();
  // A Result with a constant as its input reads no elements: it only forwards the constant.
  const bool passes_inputs_through =
      std::string(node.get_type_info().name) == "Result" && is_constant(*values.front().get_node());
  return !passes_inputs_through && std::any_of(values.begin(), values.end(), [](const auto& value) {
    return is_empty(value.get_partial_shape()) && !is_list(value);
  });
}

bool creates_empty_tensor(const ov::Node& node) {
  const auto outputs = node.outputs();
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const auto& output) { return is_empty(output.get_partial_shape()); });
}

}  // namespace

std::string find_empty_tensor(const ov::Model& model) {
  for (const auto& node : model.get_ops()) {
    const std::string type = node->get_type_info().name;
    if (type == "Constant") continue;
    if (reads_empty_tensor(*node) || (type != "Parameter" && creates_empty_tensor(*node))) {
      return concat("nGraph does not compute with empty tensors, as ", type, " has to");
    }
    const auto* with_bodies = dynamic_cast<const ov::op::util::MultiSubGraphOp*>(node.get());
    for (size_t i = 0; with_bodies && i < with_bodies->get_internal_subgraphs_size(); ++i) {
      const auto reason = find_empty_tensor(*with_bodies->get_function(static_cast<int>(i)));
      if (!reason.empty()) return reason;
    }
  }
  return {};
}

}  // namespace paddle_ngraph
