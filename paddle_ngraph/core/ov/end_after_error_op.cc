#include "core/ov/end_after_error_op.h"

#include <cstring>

namespace paddle_ngraph {

void EndAfterError::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
}

void EndAfterError::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  auto& result = outputs->front();
  const size_t bytes = result.get_byte_size();
  if (bytes == 0) return;
  if (DeferredErrors::report_again(attributes().deferred_errors_id)) {
    std::memset(result.data(), 0, bytes);
  } else {
    std::memcpy(result.data(), inputs.front().data(), bytes);
  }
}

}  // namespace paddle_ngraph
