#include "mkl_packed/row_matmul.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>
#include <xmmintrin.h>

#include "core/common/vectorized.h"
#include "mkl_packed/buffer.h"
#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

// Number of columns in a block of the right operand.
constexpr int64_t kBlock = 64;

// A larger matrix is packed: its rows are in separate pages, of which a core remembers too few.
constexpr int64_t kMaxUnpackedBytes = int64_t{4} << 20;

// -- kernels: `rows` x kBlock results -------------------------------------------------------------

// Computes c[rows, kBlock] = a[rows, k] * b[k, kBlock]; `ldb` floats from row to row of b.
using Kernel = void (*)(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k,
                        float* c, int64_t ldc);

// Multiply-adds are fused: oneDNN's kernels, too, fuse them.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")

// A vector of kLanes floats. Each instruction set has its own number of lanes: GCC keeps vectors
// that are wider than the registers in memory, at a tenth of the speed.
template <int kLanes>
struct Vector {
  // GCC ignores a size that depends on a template's parameter in a declaration by `using`.
  typedef float Type  // NOLINT(modernize-use-using)
      __attribute__((vector_size(kLanes * sizeof(float))));
};

// The kernel with kLanes floats in a register; kVectors of them are the columns that are computed
// at the same time, so that all kRows x kVectors sums stay in registers.
template <int kLanes, int kRows, int kVectors>
NGRAPH_INLINE inline void multiply(const float* a, int64_t lda, const float* b, int64_t ldb,
                                   int64_t k, float* c, int64_t ldc) {
  using Lanes = typename Vector<kLanes>::Type;
  for (int64_t first = 0; first < kBlock; first += kVectors * kLanes) {
    Lanes sums[kRows][kVectors] = {};
    for (int64_t i = 0; i < k; ++i) {
      const float* row = b + i * ldb + first;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        Lanes weights;
        std::memcpy(&weights, row + v * kLanes, sizeof(weights));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r][v] += a[r * lda + i] * weights;
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        std::memcpy(c + r * ldc + first + v * kLanes, &sums[r][v], sizeof(Lanes));
      }
    }
  }
}

#define NGRAPH_KERNEL(name, attributes, lanes, vectors)                                     \
  template <int kRows>                                                                      \
  attributes void name(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, \
                       float* c, int64_t ldc) {                                             \
    multiply<lanes, kRows, vectors>(a, lda, b, ldb, k, c, ldc);                             \
  }

// Registers: 32 with AVX-512, else 16.
NGRAPH_KERNEL(by_avx512, __attribute__((target("avx512f"))), 16, 4)
NGRAPH_KERNEL(by_avx2, __attribute__((target("avx2,fma"))), 8,
              (kRows == 1   ? 8
               : kRows == 2 ? 4
                            : 2))
NGRAPH_KERNEL(by_sse, , 4, (kRows == 1 ? 8 : kRows == 2 ? 4 : 2))
#undef NGRAPH_KERNEL
#pragma GCC pop_options

using Kernels = std::array<Kernel, kMaxFewRows>;

// The kernels by the number of rows, of the instruction set that oneDNN uses, too: its variable
// ONEDNN_MAX_CPU_ISA can withhold some of the processor's.
const Kernels& kernels() {
  static const Kernels chosen = [] {
    const auto isa = dnnl::get_effective_cpu_isa();
    if (isa >= dnnl::cpu_isa::avx512_core) {
      return Kernels{by_avx512<1>, by_avx512<2>, by_avx512<3>, by_avx512<4>};
    }
    if (isa >= dnnl::cpu_isa::avx2 && __builtin_cpu_supports("fma")) {
      return Kernels{by_avx2<1>, by_avx2<2>, by_avx2<3>, by_avx2<4>};
    }
    return Kernels{by_sse<1>, by_sse<2>, by_sse<3>, by_sse<4>};
  }();
  return chosen;
}

// -- matrices -------------------------------------------------------------------------------------

// The right operand in blocks of kBlock columns.
struct Blocks {
  const float* data;
  int64_t n, k;
  int64_t ld;        // floats from row to row of a block
  int64_t distance;  // floats from block to block
  // Whether the last block, too, has kBlock columns in memory: those of a packed matrix.
  bool is_padded;

  int64_t count() const { return (n + kBlock - 1) / kBlock; }
};

class FewRowsMatmul : public Matmul {
 public:
  FewRowsMatmul(const Blocks& b, const MatmulShape& shape)
      : b_(b), shape_(shape), kernel_(kernels()[shape.m - 1]) {}

  void compute(const float* a, const uint16_t* /*rounded*/, float* c) override {
    const int64_t count = b_.count();
    if (num_omp_threads() == 1) {
      for (int64_t i = 0; i < count; ++i) compute_block(a, i, c);
      return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i) compute_block(a, i, c);
  }

 private:
  void compute_block(const float* a, int64_t i, float* c) const {
    const int64_t first = i * kBlock, columns = std::min(kBlock, b_.n - first);
    const float* block = b_.data + i * b_.distance;
    if (columns == kBlock && !shape_.accumulate) {
      return kernel_(a, shape_.lda, block, b_.ld, b_.k, c + first, shape_.ldc);
    }
    // The last kBlock columns of an unpacked matrix begin within the block before.
    const int64_t repeated = b_.is_padded ? 0 : kBlock - columns;
    float results[kMaxFewRows * kBlock];
    kernel_(a, shape_.lda, block - repeated, b_.ld, b_.k, results, kBlock);
    for (int64_t row = 0; row < shape_.m; ++row) {
      const float* from = results + row * kBlock + repeated;
      float* to = c + row * shape_.ldc + first;
      for (int64_t j = 0; j < columns; ++j) to[j] = shape_.accumulate ? to[j] + from[j] : from[j];
    }
  }

  Blocks b_;
  MatmulShape shape_;
  Kernel kernel_;
};

class FewRowsMatrix : public PackedMatrix {
 public:
  explicit FewRowsMatrix(const Blocks& blocks) : blocks_(blocks) {}
  FewRowsMatrix(Buffer memory, int64_t n, int64_t k)
      : memory_(std::move(memory)),
        blocks_({memory_->data(), n, k, kBlock, k * kBlock, /*is_padded=*/true}) {}

  std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const override {
    return std::make_unique<FewRowsMatmul>(blocks_, shape);
  }

 private:
  std::optional<Buffer> memory_;
  Blocks blocks_;
};

// Copies rows [first, first + 4) and columns [column, column + 4) of `from`, transposed, into rows
// `column` and later of a block.
void transpose_tile(const float* from, int64_t ld, float* to) {
  __m128 rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = _mm_loadu_ps(from + i * ld);
  _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
  for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + i * kBlock, rows[i]);
}

// Packs `columns` columns of `b`, those from `first` on, into `block`, [k, kBlock].
void pack_block(const Matrix& b, int64_t k, int64_t first, int64_t columns, float* block) {
  if (columns < kBlock) std::fill_n(block, k * kBlock, 0.0f);
  if (!b.transposed) {
    for (int64_t i = 0; i < k; ++i) {
      std::copy_n(b.data + i * b.ld + first, columns, block + i * kBlock);
    }
    return;
  }
  const float* data = b.data + first * b.ld;
  const int64_t whole_k = k / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t i = 0; i < whole_k; i += 4) {
    for (int64_t j = 0; j < whole_columns; j += 4) {
      transpose_tile(data + j * b.ld + i, b.ld, block + i * kBlock + j);
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = j < whole_columns ? whole_k : 0; i < k; ++i) {
      block[i * kBlock + j] = data[j * b.ld + i];
    }
  }
}

}  // namespace

bool is_fast_unpacked(const Matrix& b, int64_t n, int64_t k) {
  const int64_t bytes = n * k * static_cast<int64_t>(sizeof(float));
  return !b.transposed && n >= kBlock && bytes <= kMaxUnpackedBytes;
}

std::shared_ptr<const PackedMatrix> refer_for_few_rows(const Matrix& b, int64_t n, int64_t k) {
  return std::make_shared<FewRowsMatrix>(Blocks{b.data, n, k, b.ld, kBlock, /*is_padded=*/false});
}

std::shared_ptr<const PackedMatrix> pack_for_few_rows(const Matrix& b, int64_t n, int64_t k) {
  const int64_t count = (n + kBlock - 1) / kBlock;
  Buffer memory(count * k * kBlock);
  float* data = memory.data();
  parallel_chunks(count, 1, k * kBlock, [&](int64_t i, int64_t, int64_t) {
    const int64_t first = i * kBlock;
    pack_block(b, k, first, std::min(kBlock, n - first), data + i * k * kBlock);
  });
  return std::make_shared<FewRowsMatrix>(std::move(memory), n, k);
}

}  // namespace paddle_ngraph::mkl_packed
