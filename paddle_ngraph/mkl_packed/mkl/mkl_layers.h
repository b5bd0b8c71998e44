// Exports of the library `_mkl.so`: the MKL functions that are used.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct MklFunctions {
  // The number of bytes of a packed [k, n] matrix, and the function that packs it for `m` rows.
  size_t (*pack_size)(int64_t m, int64_t n, int64_t k);
  void (*pack)(int64_t m, int64_t n, int64_t k, bool transposed, const float* b, int64_t ldb,
               float* packed);
  void (*compute)(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* packed,
                  float* c, int64_t ldc, float beta);
  void (*gemm)(int64_t m, int64_t n, int64_t k, bool a_transposed, const float* a, int64_t lda,
               bool b_transposed, const float* b, int64_t ldb, float* c, int64_t ldc, float beta);
};

const MklFunctions* mkl_functions();
}
