#include "core/ov/work_estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <openvino/op/util/sub_graph_base.hpp>

#include "core/ov/pin_values_op.h"

namespace paddle_ngraph {

namespace {

// Estimated nanoseconds of an operator per element that it reads, or per element that it writes,
// whichever are more.
constexpr double kNsPerElement = 1.0;
constexpr double kNsPerMultiply = 1.0 / 30;
constexpr double kUnknown = std::numeric_limits<double>::infinity();

double elements(const ov::Shape& shape) { return static_cast<double>(ov::shape_size(shape)); }

bool has_dynamic_shapes(const ov::Node& node) {
  const auto is_dynamic = [](const auto& port) { return port.get_partial_shape().is_dynamic(); };
  const auto inputs = node.inputs();
  const auto outputs = node.outputs();
  return std::any_of(inputs.begin(), inputs.end(), is_dynamic) ||
         std::any_of(outputs.begin(), outputs.end(), is_dynamic);
}

// Number of multiplications. With [M, K], [K, N] and [M, N] this is MKN; for a convolution and its
// gradients the estimate is too low, by the square root of the number of elements of the filter
// window.
double num_multiplies(const ov::Node& node) {
  const std::string type = node.get_type_info().name;
  const bool multiplies = type.find("Gemm") != std::string::npos ||
                          type.find("MatMul") != std::string::npos ||
                          type.find("Convolution") != std::string::npos;
  if (!multiplies) return 0;
  return std::sqrt(elements(node.get_input_shape(0)) * elements(node.get_input_shape(1)) *
                   elements(node.get_output_shape(0)));
}

double node_ns(const ov::Node& node) {
  // Takes no time: PinValues reads addresses only.
  if (dynamic_cast<const PinValues*>(&node)) return 0;
  if (has_dynamic_shapes(node)) return kUnknown;
  if (const auto* loop = dynamic_cast<const ov::op::util::SubGraphOp*>(&node)) {
    const auto count = loop->get_num_iterations();
    return count < 0 ? kUnknown : static_cast<double>(count) * estimated_ns(*loop->get_function());
  }
  if (dynamic_cast<const ov::op::util::MultiSubGraphOp*>(&node)) return kUnknown;
  double read = 0, written = 0;
  for (const auto& input : node.inputs()) read += elements(input.get_shape());
  for (const auto& output : node.outputs()) written += elements(output.get_shape());
  return std::max(read, written) * kNsPerElement + num_multiplies(node) * kNsPerMultiply;
}

}  // namespace

double estimated_ns(const ov::Model& model) {
  double total = 0;
  for (const auto& node : model.get_ordered_ops()) {
    const std::string type = node->get_type_info().name;
    if (type != "Constant" && type != "Parameter" && type != "Result") total += node_ns(*node);
  }
  return total;
}

}  // namespace paddle_ngraph
