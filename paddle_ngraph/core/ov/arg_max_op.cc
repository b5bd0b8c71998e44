#include "core/ov/arg_max_op.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();

NGRAPH_VECTORIZED int32_t position_in_row(const float* x, int64_t length) {
  const float largest = largest_of(x, length, kLowest);
  return largest > kLowest ? static_cast<int32_t>(std::find(x, x + length, largest) - x) : 0;
}

// Number of columns in which the maximum is searched together, row by row.
constexpr int64_t kColumns = 256;

// Finds the maximum of each column. `x` is [length, ...], whose rows are `stride` apart.
NGRAPH_VECTORIZED void positions_in_columns(const float* __restrict__ x, int64_t length,
                                            int64_t stride, int64_t columns,
                                            int32_t* __restrict__ positions) {
  float largest[kColumns];
  for (int64_t i = 0; i < columns; ++i) {
    largest[i] = kLowest;
    positions[i] = 0;
  }
  for (int64_t row = 0; row < length; ++row) {
    const float* __restrict__ at = x + row * stride;
    const auto number = static_cast<int32_t>(row);
    for (int64_t i = 0; i < columns; ++i) {
      const bool is_larger = at[i] > largest[i];
      largest[i] = is_larger ? at[i] : largest[i];
      positions[i] = is_larger ? number : positions[i];
    }
  }
}

int64_t product_of(const ov::Shape& shape, int64_t first, int64_t last) {
  return std::accumulate(shape.begin() + first, shape.begin() + last, int64_t{1},
                         [](int64_t product, size_t size) { return product * size; });
}

}  // namespace

ov::Shape ArgMax::dynamic_output_shape(const ov::TensorVector& inputs) const {
  auto shape = inputs.front().get_shape();
  shape[attributes().axis] = 1;
  return shape;
}

void ArgMax::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  auto shape = get_input_partial_shape(0);
  require(shape.rank().is_static(), "input 0 has an open rank");
  const auto rank = static_cast<int64_t>(shape.size());
  require_float(0, shape.size());
  require(attributes().axis >= 0 && attributes().axis < rank, "axis ", attributes().axis,
          " is not one of ", rank);
  require(shape[attributes().axis].get_min_length() <= std::numeric_limits<int32_t>::max(),
          "positions leave 32 bits");
  shape[attributes().axis] = 1;
  set_output_type(0, ov::element::i32, shape);
}

void ArgMax::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs.front().get_shape();
  const int64_t axis = attributes().axis, rank = static_cast<int64_t>(shape.size());
  const auto length = static_cast<int64_t>(shape[axis]);
  const int64_t outer = product_of(shape, 0, axis), inner = product_of(shape, axis + 1, rank);
  const auto* x = inputs.front().data<const float>();
  auto* positions = outputs->front().data<int32_t>();
  if (inner == 1) {
    return parallel_ranges(outer, length, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        positions[row] = position_in_row(x + row * length, length);
      }
    });
  }
  const int64_t blocks = (inner + kColumns - 1) / kColumns;
  parallel_ranges(outer * blocks, length * kColumns, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block / blocks, column = block % blocks * kColumns;
      positions_in_columns(x + row * length * inner + column, length, inner,
                           std::min(kColumns, inner - column), positions + row * inner + column);
    }
  });
}

}  // namespace paddle_ngraph
