#include "core/ov/embedding_grad_op.h"

#include <algorithm>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

void EmbeddingGrad::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  require_positions(0, 1);
  require_float(1, 2);
  const auto& grad = get_input_shape(1);
  require(get_input_shape(0)[0] == grad[0], "ids and grad differ in length");
  require(attributes().rows >= 0, "attribute rows is ", attributes().rows);
  set_output_type(0, ov::element::f32, ov::Shape{static_cast<size_t>(attributes().rows), grad[1]});
}

// Each thread owns a range of rows of the result and goes through all ids, so the order of
// summation does not depend on the number of threads.
template <typename Id>
void EmbeddingGrad::add_rows(const Id* ids, const ov::Tensor& grad, float* out) const {
  const auto count = static_cast<int64_t>(grad.get_shape()[0]);
  const auto width = static_cast<int64_t>(grad.get_shape()[1]);
  for (int64_t i = 0; i < count; ++i) {
    require(ids[i] >= 0 && ids[i] < attributes().rows, "id ", ids[i], " is not in [0, ",
            attributes().rows, ")");
  }
  const float* source = grad.data<const float>();
  parallel_shares(attributes().rows, (attributes().rows + count) * width,
                  [&](int64_t low, int64_t high) {
                    std::fill(out + low * width, out + high * width, 0.0F);
                    for (int64_t i = 0; i < count; ++i) {
                      if (ids[i] < low || ids[i] >= high || ids[i] == attributes().padding_idx)
                        continue;
                      float* row = out + ids[i] * width;
                      const float* addend = source + i * width;
                      for (int64_t j = 0; j < width; ++j) row[j] += addend[j];
                    }
                  });
}

void EmbeddingGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  float* out = outputs->front().data<float>();
  if (inputs[0].get_element_type() == ov::element::i64) {
    add_rows(inputs[0].data<const int64_t>(), inputs[1], out);
  } else {
    add_rows(inputs[0].data<const int32_t>(), inputs[1], out);
  }
}

}  // namespace paddle_ngraph
