// Parallel loops of the packed operators, on the threads of Paddle's OpenMP runtime.
#pragma once

#include <cstdint>
#include <exception>

#include "core/common/float_environment.h"

namespace paddle_ngraph::mkl_packed {

// The value of FLAGS_ngraph_num_threads; if that is 0, the number of cores that the process may
// use.
int max_threads();

// The number of threads of the next OpenMP region that this thread begins.
int num_omp_threads();

// Raises the number of OpenMP threads, which Paddle keeps at one, during a scope and for the
// calling thread alone. Regions then get exactly this number: oneDNN divides work by the number
// that OpenMP promises, and with fewer threads (OMP_DYNAMIC, OMP_THREAD_LIMIT) a part of it would
// not be computed.
class OmpThreads {
 public:
  explicit OmpThreads(int count);
  ~OmpThreads();
  OmpThreads(const OmpThreads&) = delete;
  OmpThreads& operator=(const OmpThreads&) = delete;

 private:
  int before_;
  bool was_dynamic_;
};

// The minimum number of a batch's rows that a thread computes alone (a shard): with fewer, reading
// the packed weight takes longer than multiplying.
constexpr int64_t kMinRowsPerShard = 16;

// Number of rows of a batch that one thread computes in all steps. Sequences are independent of
// each other, so threads with separate rows need no synchronization in any step. If the batch is
// not divisible, or is too small, it is one shard, and all threads share each of its matmuls.
inline int64_t rows_per_shard(int64_t batch, int64_t threads = num_omp_threads()) {
  const bool divides = batch % threads == 0 && batch / threads >= kMinRowsPerShard;
  return divides ? batch / threads : batch;
}

// Calls `body(shard)` for every shard in parallel; rethrows the exception of a body in the calling
// thread.
template <typename Body>
void parallel_shards(int64_t num_shards, const Body& body) {
  if (num_shards == 1) return body(0);
  std::exception_ptr thrown;
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < num_shards; ++i) {
    const DefaultFloatEnvironment environment;
    const OmpThreads one(1);
    try {
      body(i);
    } catch (...) {
#pragma omp critical(ngraph_share)
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

// The amount of work, elements times the cost of each, below which a parallel region does not pay
// off.
constexpr int64_t kMinParallelElements = 8192;

// Calls `body(row, first, count)` in parallel for chunks of the rows of a [rows, size] matrix.
template <typename Body>
void parallel_chunks(int64_t rows, int64_t size, int64_t cost, const Body& body) {
  constexpr int64_t kChunkElements = 512;
  const int64_t chunks_per_row = (size + kChunkElements - 1) / kChunkElements;
  const auto run = [&](int64_t i) {
    const int64_t first = i % chunks_per_row * kChunkElements;
    body(i / chunks_per_row, first, size - first < kChunkElements ? size - first : kChunkElements);
  };
  if (rows * size * cost < kMinParallelElements) {
    for (int64_t i = 0; i < rows * chunks_per_row; ++i) run(i);
    return;
  }
#pragma omp parallel
  {
    const DefaultFloatEnvironment environment;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows * chunks_per_row; ++i) run(i);
  }
}

}  // namespace paddle_ngraph::mkl_packed
