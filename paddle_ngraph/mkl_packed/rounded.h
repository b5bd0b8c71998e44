// The class Rounded: a float32 matrix that is rounded to bfloat16, as an operand of matmuls.
#pragma once

#include <cstdint>

#include "core/common/bfloat16.h"
#include "core/common/unaliased_stride.h"
#include "mkl_packed/buffer.h"
#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

class Rounded {
 public:
  Rounded(int64_t rows, int64_t columns)
      : rows_(rows),
        columns_(columns),
        ld_(unaliased_stride(columns)),
        buffer_((rows * ld_ + 1) / 2) {}

  int64_t ld() const { return ld_; }
  uint16_t* at(int64_t row) { return reinterpret_cast<uint16_t*>(buffer_.data()) + row * ld_; }

  // Rounds `count` rows of float32, and stores them from row `row` of this matrix on.
  void round(const float* data, int64_t ld, int64_t row, int64_t count) {
    parallel_chunks(count, columns_, 1, [&](int64_t i, int64_t first, int64_t size) {
      round_to_bfloat16(data + i * ld + first, size, at(row + i) + first);
    });
  }

  // Rounds a float32 matrix of the same size, and returns the address of the rounded elements.
  const uint16_t* of(const float* data, int64_t ld) {
    round(data, ld, 0, rows_);
    return at(0);
  }

 private:
  int64_t rows_, columns_, ld_;
  Buffer buffer_;
};

}  // namespace paddle_ngraph::mkl_packed
