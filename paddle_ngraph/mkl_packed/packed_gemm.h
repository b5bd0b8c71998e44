// Matrix multiplication whose right operand is converted ("packed") once and used many times.
//
// Matrices are row-major float32; the provider for bfloat16 rounds them as it reads them. The right
// operand is [k, n]; `transposed` means that it is stored as [n, k].
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace paddle_ngraph::mkl_packed {

// The maximum number of rows of a left operand for which row_matmul.h has kernels.
constexpr int64_t kMaxFewRows = 4;

struct Matrix {
  const float* data;
  int64_t ld;  // distance between the starts of rows, in elements
  bool transposed = false;
  // The elements in bfloat16 with the same `ld`, if they have been rounded before; else null.
  const uint16_t* rounded = nullptr;
};

// The multiplication c[m, n] = a[m, k] * b, or c += a * b, by a PackedMatrix b, for one shape of a
// and c. Not thread-safe.
class Matmul {
 public:
  virtual ~Matmul() = default;
  // Computes `c`; `rounded` contains the elements of `a` in bfloat16, or is null.
  virtual void compute(const float* a, const uint16_t* rounded, float* c) = 0;
  void compute(const float* a, float* c) { compute(a, nullptr, c); }
};

// Rows of the left operand and the result, and the distances between their rows.
struct MatmulShape {
  int64_t m;
  int64_t lda;
  int64_t ldc;
  bool accumulate;  // whether the product is added to `c` instead of replacing it
};

// A packed right operand; its memory is freed with the object, which must outlive its matmuls.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const = 0;
  // Whether the matrix can be multiplied with a left operand of `m` rows.
  virtual bool fits(int64_t /*m*/) const { return true; }
};

// Interface of a library for matmuls that can pack the right operand once for several matmuls.
class GemmProvider {
 public:
  virtual ~GemmProvider() = default;

  virtual const char* name() const = 0;

  // Whether matmuls round operands to bfloat16, so that callers may pass rounded ones.
  virtual bool rounds() const { return false; }

  // The maximum number of rows that are multiplied by row_matmul.h instead of the library, to which
  // fewer rows are slow.
  virtual int64_t max_few_rows() const { return kMaxFewRows; }

  // Allocates memory and packs `b`, [k, n], for left operands of `m` rows. The result does not
  // refer to `b`.
  virtual std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                                   int64_t k) const = 0;

  // Returns an operand that is not packed, but refers to `b`, which every matmul then reads.
  virtual std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n,
                                                    int64_t k) const = 0;

  // A single multiplication without packing: c[m, n] = a[m, k] * b[k, n], or c += a * b.
  virtual void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate) const = 0;
};

// The provider of float32 matmuls that FLAGS_mkl_packed_provider selects: "onednn", "mkl", or
// "auto". Throws NgraphError for another name, and for "mkl" if it is unavailable.
const GemmProvider& float32_provider();

// The provider that recurrent layers use: float32_provider() or, with FLAGS_ngraph_precision=bf16,
// the one for bfloat16 if the processor has units for it.
const GemmProvider& provider();

// The reason why the provider `name` is unavailable; empty if it is available.
std::string why_unavailable(const std::string& name);

const GemmProvider& onednn_provider();
// The provider whose matmuls round to bfloat16; null if the processor has no units for bfloat16.
const GemmProvider* bfloat16_provider();
// The provider of the MKL library. Throws NgraphError if MKL is not installed.
const GemmProvider& mkl_provider();

}  // namespace paddle_ngraph::mkl_packed
