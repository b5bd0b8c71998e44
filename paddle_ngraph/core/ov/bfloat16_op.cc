#include "core/ov/bfloat16_op.h"

#include "core/common/bfloat16.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

void ToBfloat16::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(get_input_element_type(0) == ov::element::f32, "input 0 is ", get_input_element_type(0),
          ", not f32");
  set_output_type(0, ov::element::bf16, get_input_partial_shape(0));
}

void ToBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto* from = inputs[0].data<const float>();
  auto* to = static_cast<uint16_t*>(outputs->front().data());
  parallel_ranges(static_cast<int64_t>(inputs[0].get_size()), 1, [&](int64_t begin, int64_t end) {
    round_to_bfloat16(from + begin, end - begin, to + begin);
  });
}

}  // namespace paddle_ngraph
