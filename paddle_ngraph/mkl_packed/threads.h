// Threads of the packed operators: those of Paddle's OpenMP runtime.
#pragma once

#include <cstdint>

namespace paddle_ngraph::mkl_packed {

// FLAGS_ngraph_num_threads; every core the process may use when that is 0.
int max_threads();

// What the next parallel region of this thread gets.
int num_omp_threads();

// Paddle keeps OpenMP at one thread; this raises it for a while, for the calling thread alone.
class OmpThreads {
 public:
  explicit OmpThreads(int count);
  ~OmpThreads();
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_;
};

// Work below which a region is not worth its threads: elements, times what each costs.
constexpr int64_t kLeastParallelSize = 8192;

// Calls `body(row, first, count)` for pieces of a [rows, size] matrix, side by side.
template <typename Body>
void for_pieces(int64_t rows, int64_t size, int64_t cost, const Body& body) {
  constexpr int64_t kPiece = 512;
  const int64_t pieces = (size + kPiece - 1) / kPiece;
  const auto run = [&](int64_t i) {
    const int64_t first = i % pieces * kPiece;
    body(i / pieces, first, size - first < kPiece ? size - first : kPiece);
  };
  if (rows * size * cost < kLeastParallelSize) {
    for (int64_t i = 0; i < rows * pieces; ++i) run(i);
    return;
  }
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < rows * pieces; ++i) run(i);
}

}  // namespace paddle_ngraph::mkl_packed
