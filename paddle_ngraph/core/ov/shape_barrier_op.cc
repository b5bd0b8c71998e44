#include "core/ov/shape_barrier_op.h"

#include <cstring>

namespace paddle_ngraph {

void ShapeBarrier::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  ov::PartialShape shape = get_input_partial_shape(0);
  require(shape.rank().is_static(), "input 0 has an open rank");
  for (const int64_t axis : attributes().axes) {
    require(0 <= axis && axis < shape.rank().get_length(), "there is no axis ", axis);
    shape[axis] = ov::Dimension::dynamic();
  }
  set_output_type(0, get_input_element_type(0), shape);
}

void ShapeBarrier::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& from = inputs.front();
  if (from.get_byte_size() > 0) {
    std::memcpy(outputs->front().data(), from.data(), from.get_byte_size());
  }
}

}  // namespace paddle_ngraph
