// Optimizer updates, each in one pass over the parameter and its state. The loops are in
// kernels/optimizer.h; most updates call these without an operator (optimizer_updates.h).
#pragma once

#include "core/ov/extension_ops.h"
#include "core/ov/kernels/optimizer.h"

namespace paddle_ngraph {

// An operator that updates a parameter, its first input, and more tensors of the same shape.
class OptimizerOp : public ExtensionOp {
 public:
  OPENVINO_OP("OptimizerOp", "paddle_ngraph", ExtensionOp);

  using ExtensionOp::ExtensionOp;

 protected:
  bool supports_dynamic_shapes() const override { return true; }

  // Throws unless inputs [begin, end) are float32 and have the shape of the parameter.
  void require_tensors(size_t begin, size_t end) const;
  // Checks inputs [begin, end): one float32 scalar each.
  void require_scalars(size_t begin, size_t end) const;
  // Sets this many outputs to the shape of the parameter.
  void set_outputs(size_t count);
  // Computes the outputs: the inputs `states`, updated with the gradient, which is input 1.
  static void compute_step(const OptimizerUpdate& step, const ov::TensorVector& inputs,
                           const std::vector<size_t>& states, ov::TensorVector* outputs);
};

// (param, grad [...], rate [1]) -> (param_out [...]), with param_out = param - rate * grad.
class Sgd : public OperatorIn<Sgd, OperatorWith<SgdAttributes, OptimizerOp>> {
 public:
  OPENVINO_OP("Sgd", "paddle_ngraph", OptimizerOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (param, grad, velocity [...], rate [1]) -> (param_out, velocity_out [...]), with
//   g = grad, or decay * param + grad with weight decay,
//   velocity_out = mu * velocity + g,
//   param_out = param - rate * velocity_out, with Nesterov param - (g + mu * velocity_out) * rate.
class Momentum : public OperatorIn<Momentum, OperatorWith<MomentumAttributes, OptimizerOp>> {
 public:
  OPENVINO_OP("Momentum", "paddle_ngraph", OptimizerOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

// (param, grad, moment1, moment2 [...], rate, beta1_pow, beta2_pow [1]) -> (param_out, moment1_out,
// moment2_out [...]), with
//   moment1_out = beta1 * moment1 + (1 - beta1) * grad,
//   moment2_out = beta2 * moment2 + (1 - beta2) * grad * grad,
//   s = sqrt(1 - beta2_pow),
//   param_out = p - rate * (s / (1 - beta1_pow)) * (moment1_out / (sqrt(moment2_out) + epsilon *
//   s)), p = param, or param - rate * ratio * decay * param if it decays.
// With one more input and output, AMSGrad: max(moment2_max, moment2_out), also under the root.
class Adam : public OperatorIn<Adam, OperatorWith<AdamAttributes, OptimizerOp>> {
 public:
  OPENVINO_OP("Adam", "paddle_ngraph", OptimizerOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
