#include "work.h"

#include <cmath>
#include <limits>
#include <openvino/op/util/sub_graph_base.hpp>
#include <string>

namespace paddle_ngraph {

namespace {

constexpr double kNsPerElement = 1.5;  // of a result
constexpr double kNsPerProduct = 1.0 / 30;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

double elements(const ov::Shape& shape) { return static_cast<double>(ov::shape_size(shape)); }

// Numbers multiplied. With [M, K], [K, N] and [M, N] this is MKN; for a convolution and its gradients
// it is too little by the root of what a filter covers of a channel.
double products(const ov::Node& node) {
  const std::string type = node.get_type_info().name;
  const bool multiplies =
      type.find("MatMul") != std::string::npos || type.find("Convolution") != std::string::npos;
  if (!multiplies) return 0;
  return std::sqrt(elements(node.get_input_shape(0)) * elements(node.get_input_shape(1)) *
                   elements(node.get_output_shape(0)));
}

double work_of(const ov::Node& node) {
  if (node.is_dynamic()) return kUnknown;
  if (const auto* loop = dynamic_cast<const ov::op::util::SubGraphOp*>(&node)) {
    const auto count = loop->get_num_iterations();
    return count < 0 ? kUnknown : static_cast<double>(count) * work_ns(*loop->get_function());
  }
  double total = products(node) * kNsPerProduct;
  for (const auto& output : node.outputs()) total += elements(output.get_shape()) * kNsPerElement;
  return total;
}

}  // namespace

double work_ns(const ov::Model& model) {
  double total = 0;
  for (const auto& node : model.get_ordered_ops()) {
    const std::string type = node->get_type_info().name;
    if (type != "Constant" && type != "Parameter" && type != "Result") total += work_of(*node);
  }
  return total;
}

}  // namespace paddle_ngraph
