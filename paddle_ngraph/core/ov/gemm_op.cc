#include "core/ov/gemm_op.h"

#include <algorithm>

#include <dnnl.hpp>

#include "core/common/unaliased.h"
#include "core/ov/one_thread.h"
#include "core/ov/parallel.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

// Parts of a result begin at a multiple of this many rows or columns.
constexpr int64_t kUnit = 16;

// A matrix as it lies in memory.
struct Stored {
  const float* data;
  int64_t rows, columns;
  bool transposed;
  int64_t ld = columns;  // floats from one row to the next

  // The address of the element at `row` and `column`, after transposition.
  const float* from(int64_t row, int64_t column) const {
    return transposed ? data + column * ld + row : data + row * ld + column;
  }
};

int64_t padded_size(const Stored& matrix) { return matrix.rows * unaliased(matrix.columns); }

// The same matrix with padded rows.
Stored padded(Stored matrix, float* memory) {
  const int64_t ld = unaliased(matrix.columns);
  parallel_ranges(matrix.rows, matrix.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(matrix.data + row * matrix.ld, matrix.columns, memory + row * ld);
    }
  });
  matrix.data = memory;
  matrix.ld = ld;
  return matrix;
}

enum GemmAxis { kRows, kColumns };

double products_of(int64_t m, int64_t n, int64_t k) {
  return static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

// How the result is divided: into parts that begin at a multiple of kUnit.
Grid grid_of(int64_t m, int64_t n, int64_t k, int64_t threads) {
  Work work;
  work.products = products_of(m, n, k);
  work.axes.resize(2);
  work.axes[kRows].units = (m + kUnit - 1) / kUnit;
  work.axes[kColumns].units = (n + kUnit - 1) / kUnit;
  work.operands = {{static_cast<double>(m * k), along({kRows})},
                   {static_cast<double>(k * n), along({kColumns})}};
  work.result = {static_cast<double>(m * n), along({kRows, kColumns})};
  return divide(work, threads);
}

// The rows or columns of a task.
Range lines_of(const Grid& grid, GemmAxis axis, int64_t task, int64_t size) {
  const Range units = grid.range(axis, task);
  return {units.begin * kUnit, std::min(size, units.end * kUnit)};
}

}  // namespace

void Gemm::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  require_float(0, 2);
  require_float(1, 2);
  const auto& a = get_input_shape(0);
  const auto& b = get_input_shape(1);
  const size_t k = a[attributes().transpose_a ? 0 : 1];
  require(k == b[attributes().transpose_b ? 1 : 0], "matrices ", a, " and ", b, " do not fit");
  set_output_type(
      0, ov::element::f32,
      ov::Shape{a[attributes().transpose_a ? 1 : 0], b[attributes().transpose_b ? 0 : 1]});
}

void Gemm::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto stored = [](const ov::Tensor& tensor, bool transposed) {
    const auto& shape = tensor.get_shape();
    return Stored{tensor.data<const float>(), static_cast<int64_t>(shape[0]),
                  static_cast<int64_t>(shape[1]), transposed};
  };
  Stored a = stored(inputs[0], attributes().transpose_a),
         b = stored(inputs[1], attributes().transpose_b);
  const auto m = static_cast<int64_t>(outputs->front().get_shape()[0]);
  const auto n = static_cast<int64_t>(outputs->front().get_shape()[1]);
  const int64_t k = a.transposed ? a.rows : a.columns;
  float* c = outputs->front().data<float>();
  if (m == 0 || n == 0 || k == 0) {
    std::fill_n(c, m * n, 0.0F);  // empty sums
    return;
  }
  // Operands that are read down their columns: a sum over K touches each of their rows.
  const bool pads_a = a.transposed && a.ld != unaliased(a.ld);
  const bool pads_b = !b.transposed && b.ld != unaliased(b.ld);
  const int64_t a_size = pads_a ? padded_size(a) : 0, b_size = pads_b ? padded_size(b) : 0;
  const Workspace memory(static_cast<size_t>(a_size + b_size) * sizeof(float));
  float* room = reinterpret_cast<float*>(memory.data());
  if (pads_a) a = padded(a, room);
  if (pads_b) b = padded(b, room + a_size);
  const Grid grid = grid_of(m, n, k, shared_threads());
  parallel_tasks(grid, products_of(m, n, k), [&](int64_t task) {
    OneThread one_thread;
    const Range rows = lines_of(grid, kRows, task, m), columns = lines_of(grid, kColumns, task, n);
    const auto status =
        dnnl::sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', rows.size(), columns.size(),
                    k, 1.0F, a.from(rows.begin, 0), a.ld, b.from(0, columns.begin), b.ld, 0.0F,
                    c + rows.begin * n + columns.begin, n);
    require(status == dnnl::status::success, "oneDNN refused a product");
  });
}

}  // namespace paddle_ngraph
