// Multiplication of a row by a packed matrix, for a recurrent step of a single sequence.
//
// The multiplication reads the whole matrix for two operations per element, so that its speed is
// that of the cache that contains the matrix. Libraries optimized for many rows are far slower than
// that.
#pragma once

#include <cstdint>
#include <memory>

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Number of columns in a block of the right operand of row_matmul: `b` is [n / kRowBlock, k,
// kRowBlock], padded with zeros after its last column.
constexpr int64_t kRowBlock = 64;

// `rows_of_k`: number of rows of each block in memory, at least k. `b` must outlive the matmul.
std::unique_ptr<Matmul> row_matmul(const float* b, int64_t n, int64_t k, int64_t rows_of_k,
                                   bool accumulate);

}  // namespace paddle_ngraph::mkl_packed
