#include "core/ov/bfloat16_op.h"

#include "core/common/bfloat16.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

template <typename From, typename To>
void convert(const ov::TensorVector& inputs, ov::TensorVector* outputs,
             void (*convert_all)(const From*, int64_t, To*)) {
  const auto* from = static_cast<const From*>(inputs[0].data());
  auto* to = static_cast<To*>(outputs->front().data());
  parallel_ranges(static_cast<int64_t>(inputs[0].get_size()), 1, [&](int64_t begin, int64_t end) {
    convert_all(from + begin, end - begin, to + begin);
  });
}

}  // namespace

void Bfloat16Conversion::infer_from(const ov::element::Type& from, const ov::element::Type& to) {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(get_input_element_type(0) == from, "input 0 is ", get_input_element_type(0), ", not ",
          from);
  set_output_type(0, to, get_input_partial_shape(0));
}

void ToBfloat16::infer() { infer_from(ov::element::f32, ov::element::bf16); }

void ToBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  convert<float, uint16_t>(inputs, outputs, round_to_bfloat16);
}

void FromBfloat16::infer() {
  const bool is_wide = get_input_size() == 1 && get_input_element_type(0) == ov::element::f32;
  infer_from(is_wide ? ov::element::f32 : ov::element::bf16, ov::element::f32);
}

void FromBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  if (inputs[0].get_element_type() == ov::element::f32) {
    inputs[0].copy_to(outputs->front());
    return;
  }
  convert<uint16_t, float>(inputs, outputs, widen_bfloat16);
}

void RoundToBfloat16::infer() { infer_from(ov::element::f32, ov::element::f32); }

void RoundToBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  convert<float, float>(inputs, outputs, round_as_bfloat16);
}

}  // namespace paddle_ngraph
