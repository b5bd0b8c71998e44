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

namespace {

// Number of adjacent float columns that fill a cache line.
constexpr int64_t kLine = 16;

enum EmbeddingAxis { kRows, kLines };

// Divides the work along the columns of the table: every task reads all ids, and its work is the
// same for any ids.
Grid grid_of(int64_t rows, int64_t count, int64_t width) {
  Work work;
  work.multiplies = static_cast<double>((rows + count) * width) * kMultipliesPerStep;
  work.axes.resize(2);
  work.axes[kRows].units = rows;
  work.axes[kLines].units = (width + kLine - 1) / kLine;
  work.axes[kRows].needs = kLines;
  work.operands = {{static_cast<double>(count), 0},
                   {static_cast<double>(count * width), along({kLines})}};
  work.result = {static_cast<double>(rows * width), along({kRows, kLines})};
  return divide(work, (rows + count) * width < 2 * kStepsPerTask ? 1 : shared_threads());
}

}  // namespace

// Each thread computes a chunk of the result's columns and reads all ids, so the order of summation
// does not depend on the number of threads.
template <typename Id>
void EmbeddingGrad::add_rows(const Id* ids, const ov::Tensor& grad, float* out) const {
  const auto count = static_cast<int64_t>(grad.get_shape()[0]);
  const auto width = static_cast<int64_t>(grad.get_shape()[1]);
  const int64_t rows = attributes().rows;
  for (int64_t i = 0; i < count; ++i) {
    require(ids[i] >= 0 && ids[i] < rows, "id ", ids[i], " is not in [0, ", rows, ")");
  }
  if (rows * width == 0) return;
  const float* source = grad.data<const float>();
  const Grid grid = grid_of(rows, count, width);
  const double multiplies = static_cast<double>((rows + count) * width) * kMultipliesPerStep;
  parallel_tasks(grid, multiplies, [&](int64_t task) {
    const Range own = grid.range(kRows, task), lines = grid.range(kLines, task);
    const int64_t first = lines.begin * kLine, last = std::min(width, lines.end * kLine);
    for (int64_t row = own.begin; row < own.end; ++row) {
      std::fill(out + row * width + first, out + row * width + last, 0.0F);
    }
    for (int64_t i = 0; i < count; ++i) {
      if (ids[i] < own.begin || ids[i] >= own.end || ids[i] == attributes().padding_idx) continue;
      float* row = out + ids[i] * width;
      const float* addend = source + i * width;
      for (int64_t j = first; j < last; ++j) row[j] += addend[j];
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
