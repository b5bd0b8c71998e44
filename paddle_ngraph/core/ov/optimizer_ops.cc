#include "core/ov/optimizer_ops.h"

#include <algorithm>
#include <array>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

constexpr size_t kMaxStates = 4;

const float* float_data(const ov::Tensor& tensor) { return tensor.data<const float>(); }

float scalar(const ov::Tensor& tensor) { return *float_data(tensor); }

}  // namespace

void OptimizerOp::require_tensors(size_t begin, size_t end) const {
  const auto& param = get_input_partial_shape(0);
  for (size_t i = begin; i < end; ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(get_input_element_type(i) == ov::element::f32 && shape.compatible(param), "input ", i,
            " is ", get_input_element_type(i), shape, ", not f32", param);
  }
}

void OptimizerOp::require_scalars(size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(get_input_element_type(i) == ov::element::f32 && shape.is_static() &&
                ov::shape_size(shape.to_shape()) == 1,
            "input ", i, " is ", get_input_element_type(i), shape, ", not one f32");
  }
}

void OptimizerOp::set_outputs(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    set_output_type(i, ov::element::f32, get_input_partial_shape(0));
  }
}

void OptimizerOp::compute_step(const OptimizerUpdate& step, const ov::TensorVector& inputs,
                               const std::vector<size_t>& states, ov::TensorVector* outputs) {
  const auto size = static_cast<int64_t>(inputs[0].get_size());
  parallel_ranges(
      (size + kStepChunk - 1) / kStepChunk, 2 * kStepChunk, [&](int64_t begin, int64_t end) {
        std::array<float*, kMaxStates> updated{};
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          const int64_t first = chunk * kStepChunk, count = std::min(kStepChunk, size - first);
          for (size_t i = 0; i < states.size(); ++i) {
            updated.at(i) = (*outputs)[i].data<float>() + first;
            std::copy_n(float_data(inputs[states[i]]) + first, count, updated.at(i));
          }
          step.update(count, float_data(inputs[1]) + first, updated.data());
        }
      });
}

// ---------------------------------------------------------------------------------------------
// Sgd

void Sgd::infer() {
  require(get_input_size() == 3, "takes 3 inputs, got ", get_input_size());
  require_tensors(0, 2);
  require_scalars(2, 3);
  set_outputs(1);
}

void Sgd::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const float rate = scalar(inputs[2]);
  compute_step(*step_of(attributes(), &rate, 1), inputs, {0}, outputs);
}

// ---------------------------------------------------------------------------------------------
// Momentum

void Momentum::infer() {
  require(get_input_size() == 4, "takes 4 inputs, got ", get_input_size());
  require_tensors(0, 3);
  require_scalars(3, 4);
  set_outputs(2);
}

void Momentum::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const float rate = scalar(inputs[3]);
  compute_step(*step_of(attributes(), &rate, 2), inputs, {0, 2}, outputs);
}

// ---------------------------------------------------------------------------------------------
// Adam

void Adam::infer() {
  const size_t count = get_input_size();
  require(count == 7 || count == 8, "takes 7 or 8 inputs, got ", count);
  require_tensors(0, 4);
  require_scalars(4, 7);
  require_tensors(7, count);
  set_outputs(count - 4);
}

void Adam::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  std::vector<size_t> states{0, 2, 3};
  if (inputs.size() == 8) states.push_back(7);
  const std::array<float, 3> given{scalar(inputs[4]), scalar(inputs[5]), scalar(inputs[6])};
  compute_step(*step_of(attributes(), given.data(), states.size()), inputs, states, outputs);
}

}  // namespace paddle_ngraph
