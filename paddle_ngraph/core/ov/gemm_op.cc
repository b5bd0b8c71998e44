#include "core/ov/gemm_op.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "core/common/bfloat16.h"
#include "core/common/caches.h"
#include "core/common/unaliased_stride.h"
#include "core/ov/one_thread.h"
#include "core/ov/onednn.h"
#include "core/ov/parallel.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration bfloat16_gemm_plans_declaration(
    "bfloat16_gemm_plans", "kernels and divisions of work of one operator",
    "shapes of the operand and of the result", "32 for each operator", "the end of the function");

// Chunks of a result begin at a multiple of this number of rows or columns.
constexpr int64_t kUnit = 16;

// A single remaining row or column belongs to the unit before it: oneDNN reads a single row of a
// transposed bfloat16 matrix as if its elements were contiguous.
int64_t units_of(int64_t lines) { return std::max<int64_t>(1, (lines + kUnit - 2) / kUnit); }

// A row-major matrix in memory, and whether the matmul uses its transpose.
struct StoredMatrix {
  const float* data;
  int64_t rows, columns;
  bool transposed;
  int64_t ld = columns;  // distance between the starts of rows, in floats

  // The address of the element at `row` and `column` of the matrix that the matmul uses.
  const float* from(int64_t row, int64_t column) const {
    return transposed ? data + column * ld + row : data + row * ld + column;
  }
};

int64_t padded_size(const StoredMatrix& matrix) {
  return matrix.rows * unaliased_stride(matrix.columns);
}

// Copies a matrix into `memory`, with padded rows.
StoredMatrix padded(StoredMatrix matrix, float* memory) {
  const int64_t ld = unaliased_stride(matrix.columns);
  parallel_ranges(matrix.rows, matrix.columns, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(matrix.data + row * matrix.ld, matrix.columns, memory + row * ld);
    }
  });
  matrix.data = memory;
  matrix.ld = ld;
  return matrix;
}

enum GemmAxis { kBatch, kRows, kColumns };

double num_multiplies(int64_t batch, int64_t m, int64_t n, int64_t k) {
  return static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) *
         static_cast<double>(k);
}

// Division of a batched matmul's results among threads: along the batch, and of each result matrix
// into chunks that begin at a row and a column that are multiples of kUnit.
Grid grid_of(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t threads) {
  Work work;
  work.multiplies = num_multiplies(batch, m, n, k);
  work.axes.resize(kColumns + 1);
  work.axes[kBatch].units = batch;
  work.axes[kRows].units = units_of(m);
  work.axes[kColumns].units = units_of(n);
  work.operands = {{static_cast<double>(batch * m * k), along({kBatch, kRows})},
                   {static_cast<double>(batch * k * n), along({kBatch, kColumns})}};
  work.result = {static_cast<double>(batch * m * n), along({kBatch, kRows, kColumns})};
  return divide(work, threads);
}

// The range of rows or columns of the result that a task computes.
Range lines_of(const Grid& grid, GemmAxis axis, int64_t task, int64_t size) {
  const Range units = grid.range(axis, task);
  return {units.begin * kUnit, units.end == grid.units(axis) ? size : units.end * kUnit};
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
    return StoredMatrix{tensor.data<const float>(), static_cast<int64_t>(shape[0]),
                        static_cast<int64_t>(shape[1]), transposed};
  };
  StoredMatrix a = stored(inputs[0], attributes().transpose_a),
               b = stored(inputs[1], attributes().transpose_b);
  const auto m = static_cast<int64_t>(outputs->front().get_shape()[0]);
  const auto n = static_cast<int64_t>(outputs->front().get_shape()[1]);
  const int64_t k = a.transposed ? a.rows : a.columns;
  float* c = outputs->front().data<float>();
  if (m == 0 || n == 0 || k == 0) {
    std::fill_n(c, m * n, 0.0F);  // the result of an empty sum is 0
    return;
  }
  // Copies an operand that is read along its columns, if its row stride would make the elements of
  // a column share cache sets: a sum over K reads one element from each row.
  const bool pads_a = a.transposed && a.ld != unaliased_stride(a.ld);
  const bool pads_b = !b.transposed && b.ld != unaliased_stride(b.ld);
  const int64_t a_size = pads_a ? padded_size(a) : 0, b_size = pads_b ? padded_size(b) : 0;
  const Workspace memory(static_cast<size_t>(a_size + b_size) * sizeof(float));
  float* room = reinterpret_cast<float*>(memory.data());
  if (pads_a) a = padded(a, room);
  if (pads_b) b = padded(b, room + a_size);
  const Grid grid = grid_of(1, m, n, k, shared_threads());
  parallel_tasks(grid, num_multiplies(1, m, n, k), [&](int64_t task) {
    OneThread one_thread;
    const Range rows = lines_of(grid, kRows, task, m), columns = lines_of(grid, kColumns, task, n);
    const auto status =
        dnnl::sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', rows.size(), columns.size(),
                    k, 1.0F, a.from(rows.begin, 0), a.ld, b.from(0, columns.begin), b.ld, 0.0F,
                    c + rows.begin * n + columns.begin, n);
    require(status == dnnl::status::success, "oneDNN refused a product");
  });
}

// The oneDNN primitives of one matmul, for a given number of threads.
class Bfloat16GemmPlan {
 public:
  Bfloat16GemmPlan(const ov::Shape& a, const ov::Shape& out,
                   const Bfloat16GemmAttributes& attributes, int64_t threads)
      : attributes_(attributes), grid_({1}) {
    const size_t rank = out.size();
    m_ = static_cast<int64_t>(out[rank - 2]);
    n_ = static_cast<int64_t>(out[rank - 1]);
    k_ = static_cast<int64_t>(a[attributes.transpose_a ? rank - 2 : rank - 1]);
    batch_ = static_cast<int64_t>(ov::shape_size(out)) / (m_ * n_);
    grid_ = grid_of(batch_, m_, n_, k_, threads);
    for (int64_t task = 0; task < grid_.tasks(); ++task) {
      const Range batch = grid_.range(kBatch, task);
      const Range rows = lines_of(grid_, kRows, task, m_);
      const Range columns = lines_of(grid_, kColumns, task, n_);
      add({batch.begin, rows.begin, columns.begin}, {batch.size(), rows.size(), columns.size()});
    }
  }

  void run(const ov::bfloat16* a, const ov::bfloat16* b, float* c) const {
    const Workspace memory(scratch_ * tasks_.size());
    parallel_tasks(grid_, num_multiplies(batch_, m_, n_, k_), [&](int64_t task) {
      OneThread one_thread;
      execute(tasks_[task], a, b, c, memory.data() + static_cast<size_t>(task) * scratch_);
    });
  }

 private:
  // The index of a chunk of the result: batch index, row and column. Also used for sizes of chunks.
  struct ResultIndex {
    int64_t batch, row, column;
    bool operator<(const ResultIndex& other) const {
      return std::tie(batch, row, column) < std::tie(other.batch, other.row, other.column);
    }
  };

  struct Kernel {
    ResultIndex size;
    dnnl::matmul primitive;
    dnnl::memory::desc a, b, c, scratch;
  };

  struct Task {
    ResultIndex begin;
    const Kernel* kernel;
  };

  void add(const ResultIndex& begin, const ResultIndex& size) {
    auto found = kernels_.find(size);
    if (found == kernels_.end()) found = kernels_.emplace(size, make_kernel(size)).first;
    scratch_ = std::max(scratch_, aligned(found->second.scratch.get_size()));
    tasks_.push_back({begin, &found->second});
  }

  // Matrices of `rows` and `columns`, `size` elements apart, in memory with `ld` elements between
  // rows or, if transposed, between columns.
  static dnnl::memory::desc matrices(int64_t batch, int64_t rows, int64_t columns, int64_t size,
                                     int64_t ld, bool transposed, dnnl::memory::data_type type) {
    const int64_t row = transposed ? 1 : ld, column = transposed ? ld : 1;
    return {{batch, rows, columns}, type, {size, row, column}};
  }

  Kernel make_kernel(const ResultIndex& size) const {
    OneThread one_thread;
    using Type = dnnl::memory::data_type;
    const bool ta = attributes_.transpose_a, tb = attributes_.transpose_b;
    const auto a = matrices(size.batch, size.row, k_, m_ * k_, ta ? m_ : k_, ta, Type::bf16);
    const auto b = matrices(size.batch, k_, size.column, k_ * n_, tb ? k_ : n_, tb, Type::bf16);
    const auto c = matrices(size.batch, size.row, size.column, m_ * n_, n_, false, Type::f32);
    dnnl::primitive_attr options;
    options.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc d(engine(), a, b, c, options);
    return {size, dnnl::matmul(d), a, b, c, d.scratchpad_desc()};
  }

  void execute(const Task& task, const ov::bfloat16* a, const ov::bfloat16* b, float* c,
               char* scratch) const {
    const auto [batch, row, column] = task.begin;
    const Kernel& kernel = *task.kernel;
    a += batch * m_ * k_ + row * (attributes_.transpose_a ? 1 : k_);
    b += batch * k_ * n_ + column * (attributes_.transpose_b ? k_ : 1);
    c += batch * m_ * n_ + row * n_ + column;
    kernel.primitive.execute(stream(), {{DNNL_ARG_SRC, view(kernel.a, a)},
                                        {DNNL_ARG_WEIGHTS, view(kernel.b, b)},
                                        {DNNL_ARG_DST, view(kernel.c, c)},
                                        {DNNL_ARG_SCRATCHPAD, view(kernel.scratch, scratch)}});
    if (attributes_.rounds) round(kernel.size, c);
  }

  void round(const ResultIndex& size, float* c) const {
    for (int64_t batch = 0; batch < size.batch; ++batch) {
      for (int64_t row = 0; row < size.row; ++row) {
        float* line = c + (batch * m_ + row) * n_;
        round_as_bfloat16(line, size.column, line);
      }
    }
  }

  Bfloat16GemmAttributes attributes_;
  int64_t m_, n_, k_, batch_;
  Grid grid_;
  std::map<ResultIndex, Kernel> kernels_;
  std::vector<Task> tasks_;
  size_t scratch_ = 0;  // bytes of scratch memory that each task needs
};

void Bfloat16Gemm::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  for (size_t i = 0; i < 2; ++i) {
    require(get_input_element_type(i) == ov::element::bf16, "input ", i, " is ",
            get_input_element_type(i), ", not bf16");
    require(get_input_partial_shape(i).rank().is_static(), "input ", i, " has an open rank");
  }
  set_output_type(0, ov::element::f32,
                  product_of(get_input_partial_shape(0), get_input_partial_shape(1)));
}

ov::PartialShape Bfloat16Gemm::product_of(ov::PartialShape a, ov::PartialShape b) const {
  const std::string shapes = concat("matrices ", a, " and ", b);
  require(a.size() >= 2 && a.size() == b.size(), "inputs have ranks ", a.size(), " and ", b.size());
  const size_t last = a.size() - 1;
  if (attributes().transpose_a) std::swap(a[last - 1], a[last]);
  if (attributes().transpose_b) std::swap(b[last - 1], b[last]);
  bool fits = a[last].compatible(b[last - 1]);
  for (size_t i = 0; i + 1 < last; ++i) fits &= ov::Dimension::merge(a[i], a[i], b[i]);
  require(fits, shapes, " do not fit");
  a[last] = b[last];
  return a;
}

ov::Shape Bfloat16Gemm::dynamic_output_shape(const ov::TensorVector& inputs) const {
  return product_of(inputs[0].get_shape(), inputs[1].get_shape()).to_shape();
}

std::shared_ptr<const Bfloat16GemmPlan> Bfloat16Gemm::plan_for(const ov::Shape& a,
                                                               const ov::Shape& out) const {
  return plans_.get_or_create({a, out}, [&] {
    return std::make_shared<const Bfloat16GemmPlan>(a, out, attributes(), shared_threads());
  });
}

void Bfloat16Gemm::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  ov::Tensor& out = outputs->front();
  if (inputs[0].get_size() == 0 || inputs[1].get_size() == 0) {
    std::fill_n(out.data<float>(), out.get_size(), 0.0F);  // the result of an empty sum is 0
    return;
  }
  plan_for(inputs[0].get_shape(), out.get_shape())
      ->run(inputs[0].data<const ov::bfloat16>(), inputs[1].data<const ov::bfloat16>(),
            out.data<float>());
}

}  // namespace paddle_ngraph
