// Optimizer steps, each in one pass over the parameter and its state.
#pragma once

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// An operator that updates a parameter, which is the first input, and more tensors of its shape.
class OptimizerOp : public ExtensionOp {
 public:
  OPENVINO_OP("OptimizerOp", "paddle_ngraph", ExtensionOp);

  using ExtensionOp::ExtensionOp;

 protected:
  bool allows_open_shapes() const override { return true; }

  // Checks inputs [begin, end): float32 in the shape of the parameter.
  void require_tensors(size_t begin, size_t end) const;
  // Checks inputs [begin, end): one float32 number each.
  void require_numbers(size_t begin, size_t end) const;
  // Sets this many outputs to the shape of the parameter.
  void set_outputs(size_t count);
};

struct MomentumAttributes {
  double mu = 0;
  bool nesterov = false;
  bool decays = false;
  double decay = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("mu", mu);
    visit("nesterov", nesterov);
    visit("decays", decays);
    visit("decay", decay);
  }
};

// (param, grad, velocity [...], rate [1]) -> (param_out, velocity_out [...]), with
//   g = grad, or decay * param + grad if it decays,
//   velocity_out = mu * velocity + g,
//   param_out = param - rate * velocity_out, with Nesterov param - (g + mu * velocity_out) * rate.
class Momentum : public OperatorIn<Momentum, OperatorWith<MomentumAttributes, OptimizerOp>> {
 public:
  OPENVINO_OP("Momentum", "paddle_ngraph", OptimizerOp);

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

struct AdamAttributes {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  bool decays = false;
  double ratio = 1;
  double decay = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("epsilon", epsilon);
    visit("decays", decays);
    visit("ratio", ratio);
    visit("decay", decay);
  }
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
