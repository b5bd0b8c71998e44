// A matrix product whose right operand is converted ("packed") once and used many times.
//
// Matrices are row-major float32; the provider for bfloat16 rounds them as it reads them. The right
// operand is [k, n]; `transposed` says that it lies in memory as [n, k].
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace paddle_ngraph::mkl_packed {

struct Matrix {
  const float* data;
  int64_t ld;  // elements from one row to the next
  bool transposed = false;
  // The same elements in bfloat16, as far apart, where somebody has rounded them already.
  const uint16_t* rounded = nullptr;
};

// c[m, n] = a[m, k] * b, or c += a * b, for one shape of a and c. Not to be shared by threads.
class Matmul {
 public:
  virtual ~Matmul() = default;
  // `rounded` are the same elements in bfloat16, or null.
  virtual void compute(const float* a, const uint16_t* rounded, float* c) = 0;
  void compute(const float* a, float* c) { compute(a, nullptr, c); }
};

// The shape of a left operand and of a result.
struct MatmulShape {
  int64_t m;
  int64_t lda;
  int64_t ldc;
  bool accumulate;  // add to what c holds
};

// Memory that holds a packed right operand; freed with the object, which outlives its products.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::unique_ptr<Matmul> make_matmul(const MatmulShape& shape) const = 0;
  // Whether it may be used for left operands of `m` rows.
  virtual bool fits(int64_t /*m*/) const { return true; }
};

// A library that packs and multiplies.
class GemmProvider {
 public:
  virtual ~GemmProvider() = default;

  virtual const char* name() const = 0;

  // Whether it reads operands in bfloat16 that are rounded already.
  virtual bool rounds() const { return false; }

  // Allocates and packs `b`, which is [k, n], for left operands of `m` rows. The result does not
  // refer to `b`.
  virtual std::shared_ptr<const PackedMatrix> pack(const Matrix& b, int64_t m, int64_t n,
                                                   int64_t k) const = 0;

  // The same interface without packing: the result reads `b` in every product.
  virtual std::shared_ptr<const PackedMatrix> refer(const Matrix& b, int64_t n,
                                                    int64_t k) const = 0;

  // One product of its own, with nothing packed: c[m, n] = a[m, k] * b[k, n], or c += a * b.
  virtual void gemm(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate) const = 0;
};

// The provider that FLAGS_mkl_packed_provider names: "onednn", "mkl", or "auto". Throws NgraphError
// for another name, and for "mkl" where it cannot be used.
const GemmProvider& float32_provider();

// The same; with FLAGS_ngraph_precision=bf16 the one for bfloat16, where the processor has units.
const GemmProvider& provider();

// Why a provider cannot be used; empty when it can.
std::string why_unavailable(const std::string& name);

const GemmProvider& onednn_provider();
// Null where the processor has no units for bfloat16.
const GemmProvider* bfloat16_provider();
// Throws NgraphError where MKL is not there.
const GemmProvider& mkl_provider();

}  // namespace paddle_ngraph::mkl_packed
