#include "core/ov/byte_ports.h"

#include <memory>
#include <string>

#include <openvino/op/convert.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/result.hpp>

#include "core/common/error.h"

namespace paddle_ngraph {

namespace {

const std::string& prefix() {
  static const std::string text = "bytes/";
  return text;
}

// The name of a boolean port that is u8.
std::string name_of(const char* side, size_t index) {
  return concat(prefix(), "bool/", side, "_", index);
}

// Whether a port of this type and shape passes the elements of `type` as bytes.
bool passes(const ElementNames& type, const ov::Output<const ov::Node>& port) {
  if (port.get_element_type() != ov::element::u8) return false;
  const size_t axis = axis_of_bytes(&type);
  const auto& shape = port.get_partial_shape();
  return axis == 0 || (shape.rank().is_static() && shape.size() > 0 &&
                       shape[shape.size() - 1] == static_cast<int64_t>(axis));
}

}  // namespace

void pass_booleans_as_bytes(ov::Model* model) {
  const auto parameters = model->get_parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& given = parameters[i];
    if (given->get_element_type() != ov::element::boolean) continue;
    const auto passed =
        std::make_shared<ov::op::v0::Parameter>(ov::element::u8, given->get_partial_shape());
    passed->set_friendly_name(given->get_friendly_name());
    const auto read = std::make_shared<ov::op::v0::Convert>(passed, ov::element::boolean);
    given->output(0).replace(read->output(0));
    passed->output(0).get_tensor().add_names({name_of("input", i)});
    model->replace_parameter(i, passed);
  }
  const auto results = model->get_results();
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]->get_element_type() != ov::element::boolean) continue;
    const auto computed = results[i]->input_value(0);
    const auto passed = std::make_shared<ov::op::v0::Convert>(computed, ov::element::u8);
    // A profile finds the operators of a node of the compiled function by the names in it.
    passed->set_friendly_name(computed.get_node()->get_friendly_name() + "/u8");
    results[i]->input(0).replace_source_output(passed->output(0));
    results[i]->validate_and_infer_types();
    results[i]->output(0).get_tensor().add_names({name_of("output", i)});
  }
}

const ElementNames* type_in_bytes(const ov::Output<const ov::Node>& port) {
  for (const auto& name : port.get_names()) {
    if (name.rfind(prefix(), 0) != 0) continue;
    const size_t begin = prefix().size();
    const auto dtype = name.substr(begin, name.find('/', begin) - begin);
    for (const auto& row : kElementTypes) {
      if (dtype == row.paddle && passes(row, port)) return &row;
    }
    throw NgraphError("a function passes bytes of no tensor");
  }
  return nullptr;
}

size_t axis_of_bytes(const ElementNames* type) {
  return type == nullptr || type->bytes == 1 ? 0 : type->bytes;
}

std::vector<size_t> axes_of_bytes(const std::vector<ov::Output<const ov::Node>>& ports) {
  std::vector<size_t> found;
  for (const auto& port : ports) found.push_back(axis_of_bytes(type_in_bytes(port)));
  return found;
}

}  // namespace paddle_ngraph
