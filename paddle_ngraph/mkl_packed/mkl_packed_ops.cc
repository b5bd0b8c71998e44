// The custom operators mkl_packed_rnn, mkl_packed_gru and mkl_packed_lstm, and their gradients.
//
// Attributes are those of Paddle's `rnn` (see recurrent.h). `Input` is one list: x, the initial
// states, the weights; a custom operator that has a list among its outputs, as the gradient does,
// can have no other output. `Reserve` and `Mask` are the data of a forward pass that the gradient
// reads.
#include "mkl_packed/mkl_packed_ops.h"

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>

#include "paddle/common/enforce.h"
#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/api/ext/tensor_compat.h"

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/gil_release.h"
#include "core/engine/verified_run.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"
#include "core/paddle/random.h"
#include "core/paddle/tensors.h"
#include "mkl_packed/recurrent.h"

namespace paddle_ngraph::mkl_packed {

namespace {

using Shape = std::vector<int64_t>;
using Shapes = std::vector<Shape>;
using paddle::Tensor;
using Tensors = std::vector<Tensor>;

std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw InvalidInput(concat(parts...));
}

void require_shape(const char* name, const Tensor& tensor, const Shape& expected) {
  require(tensor.dtype() == paddle::DataType::FLOAT32, name, " is ", tensor.dtype(),
          ": packed recurrent layers compute in float32");
  require(tensor.shape() == expected, name, " has the shape ", text_of(tensor.shape()),
          ", expected ", text_of(expected));
  require(dense(tensor)->meta().is_contiguous(), name, " is not contiguous");
}

std::vector<int64_t> lengths_of(const Tensor& tensor, int64_t steps, int64_t batch) {
  require(tensor.shape() == Shape{batch}, "sequence_length has the shape ", text_of(tensor.shape()),
          ", expected ", text_of({batch}));
  std::vector<int64_t> lengths;
  if (tensor.dtype() == paddle::DataType::INT32) {
    lengths.assign(tensor.data<int32_t>(), tensor.data<int32_t>() + batch);
  } else {
    require(tensor.dtype() == paddle::DataType::INT64, "sequence_length is ", tensor.dtype(),
            ", expected int32 or int64");
    lengths.assign(tensor.data<int64_t>(), tensor.data<int64_t>() + batch);
  }
  for (const int64_t length : lengths) {
    require(length >= 0 && length <= steps, "sequence_length holds ", length, ", but x has ", steps,
            " steps");
  }
  return lengths;
}

// The tensors in the operator's list `Input`: x, initial states and weights.
struct Operands {
  Operands(const Tensors& inputs, Mode mode) {
    const size_t num_states = mode == Mode::lstm ? 2 : 1;
    require(inputs.size() > num_states, "there are only ", inputs.size(), " inputs");
    x = inputs[0];
    pre_state.assign(inputs.begin() + 1, inputs.begin() + 1 + num_states);
    weights.assign(inputs.begin() + 1 + num_states, inputs.end());
  }

  Tensor x;
  Tensors pre_state;
  Tensors weights;
};

// Creates the description of the recurrent network. Throws an error if an input or attribute is
// invalid.
Network network_of(const Operands& operands, const paddle::optional<Tensor>& sequence_length,
                   const Attributes& attributes, const GemmProvider& gemm) {
  const auto& [x, pre_state, weights] = operands;
  const Shape shape = x.shape();
  require(shape.size() == 3, "x has the shape ", text_of(shape), ", expected 3 dimensions");
  require(shape[0] > 0 && shape[2] > 0, "x is empty: its shape is ", text_of(shape));
  require(attributes.hidden_size > 0 && attributes.num_layers > 0,
          "hidden_size and num_layers must be positive");
  require(attributes.dropout_prob >= 0 && attributes.dropout_prob <= 1, "dropout_prob is ",
          attributes.dropout_prob, ", expected 0 to 1");
  Network net{};
  net.gemm = &gemm;
  net.mode = mode_of(attributes.mode);
  net.steps = shape[0];
  net.batch = shape[1];
  net.input = shape[2];
  net.hidden = attributes.hidden_size;
  net.layers = attributes.num_layers;
  net.directions = attributes.directions();
  net.is_test = attributes.is_test;
  net.dropout = attributes.dropout_prob;
  require_shape("x", x, shape);
  for (const auto& state : pre_state) {
    require_shape("an initial state", state, {net.cells(), net.batch, net.hidden});
  }
  require(static_cast<int64_t>(weights.size()) == 4 * net.cells(), "there are ", weights.size(),
          " weights and biases, expected ", 4 * net.cells());
  for (int64_t cell = 0; cell < net.cells(); ++cell) {
    const int64_t input = cell < net.directions ? net.input : net.width();
    require_shape("weight_ih", weights[2 * cell], {net.gates(), input});
    require_shape("weight_hh", weights[2 * cell + 1], {net.gates(), net.hidden});
    require_shape("bias_ih", weights[2 * (net.cells() + cell)], {net.gates()});
    require_shape("bias_hh", weights[2 * (net.cells() + cell) + 1], {net.gates()});
  }
  for (const auto& weight : weights) net.weights.push_back(dense(weight));
  if (sequence_length && net.batch > 0) {
    net.lengths = lengths_of(*sequence_length, net.steps, net.batch);
  }
  return net;
}

// The inputs of an operator by slot: each slot has one tensor or a list.
class Inputs {
 public:
  explicit Inputs(const paddle::CustomOpKernelContext& context) : context_(context) {}

  const Tensor& at(size_t slot) const {
    return context_.InputAt(context_.InputRangeAt(slot).first);
  }
  Tensors list(size_t slot) const {
    const auto [first, last] = context_.InputRangeAt(slot);
    return context_.InputsBetween(first, last);
  }
  paddle::optional<Tensor> optional(size_t slot) const {
    return context_.OptionalInputAt(context_.InputRangeAt(slot).first);
  }

 private:
  const paddle::CustomOpKernelContext& context_;
};

Attributes attributes_of(const paddle::CustomOpKernelContext& context) {
  return {context.AttrAt<std::string>(0), context.AttrAt<int>(1),   context.AttrAt<int>(2),
          context.AttrAt<bool>(3),        context.AttrAt<float>(4), context.AttrAt<int>(5),
          context.AttrAt<bool>(6)};
}

// Passes `values` to Paddle as the operator's outputs, except those that Paddle does not request.
void set_outputs(paddle::CustomOpKernelContext* context, const Tensors& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    auto* output = dense(*context->MutableOutputAt(i));
    if (output != nullptr) *output = *dense(values[i]);
  }
}

// Compares the results of a run with those of Paddle's kernels. Operands that Paddle does not pass
// are absent.
void check_results(const Inputs& inputs, const paddle::CustomOpKernelContext& context,
                   const Attributes& attributes, const Tensors& results,
                   const GeneratorBefore& random) {
  const std::array<const char*, 8> names{"inputs", "sequence_length", "out",    "reserve",
                                         "mask",   "out_grad",        "h_grad", "c_grad"};
  std::map<std::string, std::vector<phi::DenseTensor>> given;
  for (size_t slot = 0; slot < context.InputRange().size(); ++slot) {
    for (const auto& tensor : inputs.list(slot)) {
      if (tensor.initialized()) given[names.at(slot)].push_back(*dense(tensor));
    }
  }
  std::vector<phi::DenseTensor> found;
  for (const auto& tensor : results) found.push_back(*dense(tensor));
  check_layer({{"mode", attributes.mode},
               {"hidden_size", attributes.hidden_size},
               {"num_layers", attributes.num_layers},
               {"is_bidirec", attributes.is_bidirec},
               {"dropout_prob", static_cast<double>(attributes.dropout_prob)},
               {"seed", static_cast<int64_t>(attributes.seed)},
               {"is_test", attributes.is_test}},
              given, found, random);
}

VerifiedRuns verified_runs;

// The kernel of a custom operator: calls `run`, and converts our errors to Paddle's, which become
// ValueError and RuntimeError in Python. The provider is selected once, while the GIL is held,
// under which flags are set: they may change during the run.
template <Tensors (*run)(const Inputs&, const Attributes&, const GemmProvider&)>
void kernel(paddle::CustomOpKernelContext* context) {
  const auto attributes = attributes_of(*context);
  try {
    const GemmProvider& gemm = provider();
    // The caller may be a Python thread (dynamic mode), which has the GIL, or a worker thread of
    // Paddle's executor, which lacks the GIL.
    std::optional<GilRelease> released;
    if (PyGILState_Check() != 0) released.emplace();
    const Inputs inputs(*context);
    std::optional<GeneratorBefore> random;
    if (verified_runs.next()) random.emplace();
    Tensors results = run(inputs, attributes, gemm);
    if (has_fault(Step::kLayer)) results[0].data<float>()[0] += 1;
    set_outputs(context, results);
    if (random) check_results(inputs, *context, attributes, results, *random);
  } catch (const PythonInterrupt& interruption) {
    throw_as_paddle_error(interruption);
  } catch (const InvalidInput& error) {
    PADDLE_THROW(
        common::errors::InvalidArgument("mkl_packed (%s): %s", attributes.mode, error.what()));
  } catch (const std::exception& error) {
    PADDLE_THROW(
        common::errors::PreconditionNotMet("mkl_packed (%s): %s", attributes.mode, error.what()));
  }
}

// -- forward --------------------------------------------------------------------------------------

Tensor allocate(const Shape& shape, paddle::DataType dtype = paddle::DataType::FLOAT32) {
  return Tensor(std::make_shared<phi::DenseTensor>(empty({dtype, phi::make_ddim(shape)})));
}

// Samples the dropout mask, one buffer with the masks of all layers of the network. The random
// numbers are those that Paddle's own operator samples from its generator.
Tensor sample_mask(const Network& net, int seed) {
  auto mask = allocate({net.mask_size()}, paddle::DataType::UINT8);
  if (net.mask_size() == 0) return mask;
  if (net.dropout == 1.0f) return paddle::zeros({net.mask_size()}, paddle::DataType::UINT8);
  const RandomSample wanted{
      Distribution::dropout_mask, net.dropout, 0, seed, {static_cast<size_t>(net.mask_size())}};
  sample({wanted}, {mask.data()});
  return mask;
}

Tensors run_layer(const Tensors& inputs, const paddle::optional<Tensor>& lengths,
                  const Attributes& attributes, const GemmProvider& gemm) {
  const Operands operands(inputs, mode_of(attributes.mode));
  const auto& [x, pre_state, weights] = operands;
  const Network net = network_of(operands, lengths, attributes, gemm);
  auto out = allocate({net.steps, net.batch, net.width()});
  auto reserve = allocate({net.reserve_size()});  // values that only the gradient operator reads
  auto mask = sample_mask(net, attributes.seed);
  Tensors states;
  for (const auto& state : pre_state) states.push_back(allocate(state.shape()));
  Tensors results{out};
  results.insert(results.end(), states.begin(), states.end());
  results.insert(results.end(), {reserve, mask});
  if (net.batch == 0) return results;
  ForwardData data{};
  data.x = x.data<float>();
  data.h_before = pre_state[0].data<float>();
  data.out = out.data<float>();
  data.h_last = states[0].data<float>();
  if (net.mode == Mode::lstm) {
    data.c_before = pre_state[1].data<float>();
    data.c_last = states[1].data<float>();
  }
  data.reserve = static_cast<float*>(memory(*dense(reserve)));
  data.mask = static_cast<const uint8_t*>(memory(*dense(mask)));
  forward(net, data);
  return results;
}

Tensors run_forward(const Inputs& inputs, const Attributes& attributes, const GemmProvider& gemm) {
  return run_layer(inputs.list(0), inputs.optional(1), attributes, gemm);
}

// Whether a tensor is what the kernels read: without a conversion, which Paddle makes for
// operators.
bool is_readable(const Tensor& tensor) {
  return tensor.initialized() && tensor.is_dense_tensor() && tensor.is_cpu();
}

template <int kStates>
Shapes infer_shape(const Shapes& /*inputs*/, const std::vector<Shapes>& lists,
                   const std::vector<paddle::any>& attributes) {
  const int64_t hidden = *paddle::any_cast<int>(&attributes.at(1));
  const int64_t directions = *paddle::any_cast<bool>(&attributes.at(3)) ? 2 : 1;
  const Shapes& inputs = lists.at(0);
  Shapes shapes{{inputs.at(0).at(0), inputs.at(0).at(1), directions * hidden}};
  for (int i = 0; i < kStates; ++i) shapes.push_back(inputs.at(1 + i));
  shapes.insert(shapes.end(), {{-1}, {-1}});
  return shapes;
}

template <int kStates>
std::vector<paddle::DataType> infer_dtype(const std::vector<paddle::DataType>& /*inputs*/,
                                          const std::vector<std::vector<paddle::DataType>>& lists,
                                          const std::vector<paddle::any>& /*attributes*/) {
  std::vector<paddle::DataType> types(kStates + 2, lists.at(0).at(0));
  types.push_back(paddle::DataType::UINT8);
  return types;
}

// -- backward -------------------------------------------------------------------------------------

Tensor zeros(const Shape& shape) {
  return paddle::zeros(shape, paddle::DataType::FLOAT32, paddle::CPUPlace());
}

// The gradient of an output. If that output was not used, Paddle passes none: zeros in the shape of
// `like`.
Tensor given_or_zeros(const Tensor& grad, const Tensor& like) {
  return grad.initialized() ? grad : zeros(like.shape());
}

Tensors run_backward(const Inputs& inputs, const Attributes& attributes, const GemmProvider& gemm) {
  // A RuntimeError in Python, as natively.
  if (attributes.is_test)
    throw NgraphError("there is no gradient of a run in evaluation mode (is_test)");
  const Tensors tensors = inputs.list(0);
  if (tensors.empty()) {
    throw NgraphError(
        "what the gradient reads was freed by an earlier backward pass: pass "
        "retain_graph=True to that one");
  }
  const Operands operands(tensors, mode_of(attributes.mode));
  const auto& [x, pre_state, weights] = operands;
  const Network net = network_of(operands, inputs.optional(1), attributes, gemm);
  const Tensor &out = inputs.at(2), &reserve = inputs.at(3), &mask = inputs.at(4);
  const Tensor out_grad = given_or_zeros(inputs.at(5), out);
  Tensors state_grads;
  for (size_t i = 0; i < pre_state.size(); ++i) {
    state_grads.push_back(given_or_zeros(inputs.at(6 + i), pre_state[i]));
  }
  require_shape("out", out, {net.steps, net.batch, net.width()});
  require_shape("the gradient of out", out_grad, out.shape());
  require_shape("reserve", reserve, {net.reserve_size()});
  for (const auto& grad : state_grads) {
    require_shape("the gradient of a state", grad, pre_state[0].shape());
  }
  // Allocates the results: the gradients of x, of the initial states and of the weights.
  Tensors grads{allocate(x.shape())};
  for (const auto& state : pre_state) grads.push_back(allocate(state.shape()));
  for (const auto& weight : weights) {
    grads.push_back(net.batch > 0 ? allocate(weight.shape()) : zeros(weight.shape()));
  }
  if (net.batch == 0) return grads;
  BackwardData data{};
  data.x = x.data<float>();
  data.h_before = pre_state[0].data<float>();
  data.out = out.data<float>();
  data.reserve = reserve.data<float>();
  data.mask = static_cast<const uint8_t*>(memory(*dense(mask)));
  data.out_grad = out_grad.data<float>();
  data.h_last_grad = state_grads[0].data<float>();
  data.x_grad = grads[0].data<float>();
  data.h_before_grad = grads[1].data<float>();
  if (net.mode == Mode::lstm) {
    data.c_before = pre_state[1].data<float>();
    data.c_last_grad = state_grads[1].data<float>();
    data.c_before_grad = grads[2].data<float>();
  }
  for (size_t i = 1 + pre_state.size(); i < grads.size(); ++i) {
    data.weight_grads.push_back(grads[i].data<float>());
  }
  backward(net, data);
  return grads;
}

// -- gradient of the gradient ---------------------------------------------------------------------

// Raises an error for second-order gradients. Without this operator, Paddle would treat the
// gradient as a constant.
void no_second_gradient(paddle::CustomOpKernelContext* /*context*/) {
  PADDLE_THROW(
      common::errors::Unavailable("mkl_packed: the gradient of a recurrent layer has no gradient, "
                                  "as in Paddle (create_graph)"));
}

// -- registration ---------------------------------------------------------------------------------

const std::vector<std::string> kInputs{paddle::Vec("Input"), paddle::Optional("SequenceLength")};
const std::vector<std::string> kAttributes{
    "mode: std::string",   "hidden_size: int", "num_layers: int", "is_bidirec: bool",
    "dropout_prob: float", "seed: int",        "is_test: bool"};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <int kStates>
bool register_operator(std::string name) {
  const std::vector<std::string> all_states{"H", "C"};
  const std::vector<std::string> states(all_states.begin(), all_states.begin() + kStates);
  std::vector<std::string> grads{paddle::Grad("Out")};
  for (const auto& state : states) grads.push_back(paddle::Grad(state));
  std::string grad_name = name, second_name = name;
  paddle::OpMetaInfoBuilder(std::move(name), 0)
      .Inputs(std::vector<std::string>(kInputs))
      .Outputs(joined(joined({"Out"}, states), {"Reserve", "Mask"}))
      .Attrs(std::vector<std::string>(kAttributes))
      .SetKernelFn(kernel<run_forward>)
      .SetInferShapeFn(infer_shape<kStates>)
      .SetInferDtypeFn(infer_dtype<kStates>);
  paddle::OpMetaInfoBuilder(std::move(grad_name), 1)
      .Inputs(joined(joined(kInputs, {"Out", "Reserve", "Mask"}), grads))
      .Outputs({paddle::Grad(paddle::Vec("Input"))})
      .Attrs(std::vector<std::string>(kAttributes))
      .SetKernelFn(kernel<run_backward>);
  const std::string input_grad = paddle::Grad(paddle::Vec("Input"));
  paddle::OpMetaInfoBuilder(std::move(second_name), 2)
      .Inputs({paddle::Grad("Out"), paddle::Grad(input_grad)})
      .Outputs({paddle::Grad(paddle::Grad("Out"))})
      .SetKernelFn(no_second_gradient);
  return true;
}

[[maybe_unused]] const bool registered = register_operator<1>("mkl_packed_rnn") &&
                                         register_operator<1>("mkl_packed_gru") &&
                                         register_operator<2>("mkl_packed_lstm");

}  // namespace

std::optional<Tensors> infer(const Tensors& inputs, const Tensor* lengths,
                             const Attributes& attributes) {
  const bool has_lengths = lengths != nullptr;
  if (!attributes.is_test || FLAGS_ngraph_verify > 0 || has_fault(Step::kLayer))
    return std::nullopt;
  if (!std::all_of(inputs.begin(), inputs.end(), is_readable)) return std::nullopt;
  if (has_lengths && !is_readable(*lengths)) return std::nullopt;
  try {
    const GemmProvider& gemm = provider();
    const GilRelease released;
    Tensors results = run_layer(
        inputs, has_lengths ? paddle::optional<Tensor>(*lengths) : paddle::none, attributes, gemm);
    results.resize(results.size() - 2);  // without reserve and mask
    return results;
  } catch (const std::exception& /*error*/) {
    return std::nullopt;
  }
}

}  // namespace paddle_ngraph::mkl_packed
