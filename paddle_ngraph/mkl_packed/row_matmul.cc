#include "mkl_packed/row_matmul.h"

#include <algorithm>

#include "core/common/vectorized.h"

namespace paddle_ngraph::mkl_packed {

namespace {

// A vector of 16 sums. Four of them make a block: as many sums as one core can accumulate at the
// same time.
using Lanes = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kLanes = 16;
static_assert(kRowBlock == 4 * kLanes);

NGRAPH_VECTORIZED
void multiply_block(const float* a, const float* block, int64_t k, float* sums) {
  Lanes first{}, second{}, third{}, fourth{};
  for (int64_t i = 0; i < k; ++i) {
    const auto* row = reinterpret_cast<const Lanes*>(block + i * kRowBlock);
    first += a[i] * row[0];
    second += a[i] * row[1];
    third += a[i] * row[2];
    fourth += a[i] * row[3];
  }
  auto* result = reinterpret_cast<Lanes*>(sums);
  result[0] = first;
  result[1] = second;
  result[2] = third;
  result[3] = fourth;
}

class RowMatmul : public Matmul {
 public:
  RowMatmul(const float* b, int64_t n, int64_t k, int64_t rows_of_k, bool accumulate)
      : b_(b), n_(n), k_(k), rows_of_k_(rows_of_k), accumulate_(accumulate) {}

  void compute(const float* a, const uint16_t* /*rounded*/, float* c) override {
    const int64_t blocks = (n_ + kRowBlock - 1) / kRowBlock;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < blocks; ++i) {
      float sums[kRowBlock];
      multiply_block(a, b_ + i * rows_of_k_ * kRowBlock, k_, sums);
      const int64_t first = i * kRowBlock;
      add(sums, c + first, std::min(kRowBlock, n_ - first));
    }
  }

 private:
  void add(const float* sums, float* c, int64_t count) const {
    for (int64_t j = 0; j < count; ++j) c[j] = accumulate_ ? c[j] + sums[j] : sums[j];
  }

  const float* b_;
  int64_t n_, k_, rows_of_k_;
  bool accumulate_;
};

}  // namespace

std::unique_ptr<Matmul> row_matmul(const float* b, int64_t n, int64_t k, int64_t rows_of_k,
                                   bool accumulate) {
  return std::make_unique<RowMatmul>(b, n, k, rows_of_k, accumulate);
}

}  // namespace paddle_ngraph::mkl_packed
