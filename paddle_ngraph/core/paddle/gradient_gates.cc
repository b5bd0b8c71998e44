#include "core/paddle/gradient_gates.h"

#include "core/lazy/capture.h"
#include "core/paddle/python_tensors.h"

// Declares functions of Paddle's autograd, whose headers are not in its wheel.
namespace egr {

class GradNodeBase {
 public:
  // Sets the node to which the gradient of input `slot` goes on: that of `input`.
  void SetGradOutMeta(const paddle::Tensor& input, size_t slot);
};

class AutogradMeta;

class EagerUtils {
 public:
  static AutogradMeta* autograd_meta(paddle::Tensor* tensor);
  static void SetHistory(AutogradMeta* meta, const std::shared_ptr<GradNodeBase>& node);
  static void SetOutRankWithSlot(AutogradMeta* meta, size_t slot);
  static std::shared_ptr<GradNodeBase> grad_node(const paddle::Tensor& tensor);
};

}  // namespace egr

namespace paddle_ngraph {

std::shared_ptr<const egr::GradNodeBase> autograd_node_of(const paddle::Tensor& tensor) {
  return egr::EagerUtils::grad_node(tensor);
}

GradientGates::GradientGates(const pybind11::list& views, const pybind11::object& source)
    : source_(egr::EagerUtils::grad_node(tensor_of(source.ptr()))) {
  for (const auto& view : views) {
    nodes_.push_back(egr::EagerUtils::grad_node(tensor_of(view.ptr())));
  }
}

std::vector<uintptr_t> GradientGates::addresses() const {
  std::vector<uintptr_t> addresses;
  for (const auto& node : nodes_) {
    addresses.push_back(reinterpret_cast<uintptr_t>(node.lock().get()));
  }
  return addresses;
}

RetainedNode GradientGates::redirect(const pybind11::function& compute_sources) {
  const NoCapture none;
  RetainedNode former{source_.lock()};
  const pybind11::list sources = compute_sources();
  source_ = egr::EagerUtils::grad_node(tensor_of(pybind11::object(sources[0]).ptr()));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto node = nodes_[i].lock();
    if (node) node->SetGradOutMeta(tensor_of(pybind11::object(sources[i]).ptr()), 0);
  }
  return former;
}

void GradientGates::restore(const RetainedNode& former, const pybind11::list& tensors,
                            const std::vector<size_t>& slots) {
  source_ = former.node;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto node = nodes_[i].lock();
    if (!node) continue;
    paddle::Tensor result = tensor_of(pybind11::object(tensors[i]).ptr());
    auto* meta = egr::EagerUtils::autograd_meta(&result);
    egr::EagerUtils::SetOutRankWithSlot(meta, slots[i]);
    egr::EagerUtils::SetHistory(meta, former.node);
    node->SetGradOutMeta(result, 0);
  }
}

}  // namespace paddle_ngraph
