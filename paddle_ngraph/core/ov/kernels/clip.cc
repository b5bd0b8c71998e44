#include "core/ov/kernels/clip.h"

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"

namespace paddle_ngraph {

NGRAPH_VECTORIZED float sum_of_squares(const float* x, int64_t count) {
  return sum_of(count, [&](int64_t i) { return x[i] * x[i]; });
}

NGRAPH_VECTORIZED void scale(const float* x, int64_t count, float factor, float* product) {
  for (int64_t i = 0; i < count; ++i) product[i] = x[i] * factor;
}

}  // namespace paddle_ngraph
