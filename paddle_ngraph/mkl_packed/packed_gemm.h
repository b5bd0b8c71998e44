// Matrix multiplication whose right operand is converted ("packed") once and used many times.
//
// Matrices are row-major float32; the provider for bfloat16 rounds them as it reads them. The right
// operand is [k, n]; `transposed` means that it is stored as [n, k].
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace paddle_ngraph::mkl_packed {

struct Matrix {
  const float* data;
  int64_t ld;  // elements between rows
  bool transposed = false;
  // The elements in bfloat16 with the same `ld`, if they have been rounded before; else null.
  const uint16_t* rounded = nullptr;
};

// c[m, n] = a[m, k] * b, or c += a * b, for one shape of a and c. Not thread-safe.
class Matmul {
 public:
  virtual ~Matmul() = default;
  // `rounded`: the elements of `a` rounded to bfloat16, or null if they are not rounded yet.
  virtual void compute(const float* a, const uint16_t* rounded, float* c) = 0;
  void compute(const float* a, float* c) { compute(a, nullptr, c); }
};

// The shapes of the left operand and of the result.
struct MatmulShape {
  int64_t m;
  int64_t lda;
  int64_t ldc;
  bool accumulate;  // whether the product is added to the contents of c
};

// A packed right operand; its memory is freed with the object, which must outlive its matmuls.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const = 0;
  // Whether the packed matrix supports left operands of `m` rows.
  virtual bool fits(int64_t /*m*/) const { return true; }
};

// A matmul library that can pack the right operand once.
class GemmProvider {
 public:
  virtual ~GemmProvider() = default;

  virtual const char* name() const = 0;

  // Whether the library reads operands that are already rounded to bfloat16.
  virtual bool rounds() const { return false; }

  // Allocates memory and packs `b`, [k, n], for left operands of `m` rows. The result does not
  // refer to `b`.
  virtual std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                                   int64_t k) const = 0;

  // Returns a right operand that is not packed: each multiplication reads `b` itself.
  virtual std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n,
                                                    int64_t k) const = 0;

  // A single multiplication without packing: c[m, n] = a[m, k] * b[k, n], or c += a * b.
  virtual void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate) const = 0;
};

// The provider that FLAGS_mkl_packed_provider names: "onednn", "mkl", or "auto". Throws NgraphError
// for another name, and for "mkl" if it is unavailable.
const GemmProvider& float32_provider();

// The float32 provider or, with FLAGS_ngraph_precision=bf16, the one for bfloat16 if the processor
// has units for it.
const GemmProvider& provider();

// The reason why a provider is unavailable; empty if it is available.
std::string why_unavailable(const std::string& name);

const GemmProvider& onednn_provider();
// The provider of bfloat16 matmuls; null if the processor has no units for bfloat16.
const GemmProvider* bfloat16_provider();
// The provider of MKL. Throws NgraphError if MKL is not installed.
const GemmProvider& mkl_provider();

}  // namespace paddle_ngraph::mkl_packed
