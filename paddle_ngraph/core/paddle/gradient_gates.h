// Autograd nodes through which gradients enter a graph, and which can be redirected.
#pragma once

#include <pybind11/pytypes.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "paddle/phi/api/include/tensor.h"

namespace egr {
class GradNodeBase;
}

namespace paddle_ngraph {

// Keeps an autograd node alive.
struct RetainedNode {
  std::shared_ptr<egr::GradNodeBase> node;
};

// The autograd node that a tensor's gradient goes to, for comparison; null for a leaf.
std::shared_ptr<const egr::GradNodeBase> autograd_node_of(const paddle::Tensor& tensor);

// The autograd nodes of tensors, each of which is a view of a result of a graph. The nodes are not
// retained: a node that has no tensor and no later node is destroyed.
class GradientGates {
 public:
  // views: the tensors. source: a result of the graph.
  GradientGates(const pybind11::list& views, const pybind11::object& source);

  // The addresses of the nodes; 0 for a node that was destroyed.
  std::vector<uintptr_t> addresses() const;

  // From now on the gradient that reaches the node of view i goes on to tensor i of the list that
  // `compute_sources` returns. Operators that `compute_sources` calls are not captured. Returns the
  // node to which the gradients went before.
  RetainedNode redirect(const pybind11::function& compute_sources);

  // Has the gradients go to `former` again: that of view i to the result `slots[i]` of the node.
  // The tensors have the shapes and dtypes of the results; they become results of the node.
  void restore(const RetainedNode& former, const pybind11::list& tensors,
               const std::vector<size_t>& slots);

 private:
  std::vector<std::weak_ptr<egr::GradNodeBase>> nodes_;
  std::weak_ptr<egr::GradNodeBase> source_;
};

}  // namespace paddle_ngraph
