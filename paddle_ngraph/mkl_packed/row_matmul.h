// Multiplication of a few rows by a matrix, for a recurrent step of one to four sequences.
//
// The multiplication reads the whole matrix for a few operations per element, so that its speed is
// that of the cache that contains the matrix. Libraries optimized for many rows are far slower than
// that.
#pragma once

#include <cstdint>
#include <memory>

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Whether a multiplication of a few rows reads `b`, [k, n], as fast where it is as packed.
bool is_fast_unpacked(const Matrix& b, int64_t n, int64_t k);

// The right operand `b`, [k, n], where it is: `b` must outlive the result. Requires
// is_fast_unpacked.
std::shared_ptr<const PackedMatrix> refer_for_few_rows(const Matrix& b, int64_t n, int64_t k);

// The right operand `b`, [k, n], packed: [n / 64, k, 64], with zeros after the last column.
std::shared_ptr<const PackedMatrix> pack_for_few_rows(const Matrix& b, int64_t n, int64_t k);

}  // namespace paddle_ngraph::mkl_packed
