// MKL, linked layer by layer: interface, threading on Paddle's OpenMP runtime, and core.
//
// A separate library, opened with RTLD_LOCAL: Paddle loads its older MKLML late, and MKLML would
// bind to these symbols if they were visible to it. (`libmkl_rt` makes its layers visible
// globally.)
#include "mkl_packed/mkl/mkl_layers.h"

#include <mkl_cblas.h>

namespace {

size_t pack_size(int64_t m, int64_t n, int64_t k) {
  return cblas_sgemm_pack_get_size(CblasBMatrix, m, n, k);
}

void pack(int64_t m, int64_t n, int64_t k, bool transposed, const float* b, int64_t ldb,
          float* packed) {
  cblas_sgemm_pack(CblasRowMajor, CblasBMatrix, transposed ? CblasTrans : CblasNoTrans, m, n, k,
                   1.0f, b, ldb, packed);
}

void compute(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* packed,
             float* c, int64_t ldc, float beta) {
  cblas_sgemm_compute(CblasRowMajor, CblasNoTrans, CblasPacked, m, n, k, a, lda, packed, n, beta, c,
                      ldc);
}

void gemm(int64_t m, int64_t n, int64_t k, bool a_transposed, const float* a, int64_t lda,
          bool b_transposed, const float* b, int64_t ldb, float* c, int64_t ldc, float beta) {
  cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
              b_transposed ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, a, lda, b, ldb, beta, c,
              ldc);
}

}  // namespace

__attribute__((visibility("default"))) const MklFunctions* mkl_functions() {
  static const MklFunctions functions{pack_size, pack, compute, gemm};
  return &functions;
}
