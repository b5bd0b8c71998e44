// A row times a packed matrix: the product of a recurrent step of one sequence.
//
// It reads the whole matrix for two operations an element, so that it is as fast as the cache that
// the matrix lies in. Libraries that are made for products of many rows stay far below that.
#pragma once

#include <cstdint>
#include <memory>

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Columns that lie together: `b` is [n / kRowBlock, k, kRowBlock], with zeros behind its last
// column.
constexpr int64_t kRowBlock = 64;

// `rows_of_k` is how many there are of each block in memory, at least k. `b` outlives the product.
std::unique_ptr<Matmul> row_matmul(const float* b, int64_t n, int64_t k, int64_t rows_of_k,
                                   bool accumulate);

}  // namespace paddle_ngraph::mkl_packed
