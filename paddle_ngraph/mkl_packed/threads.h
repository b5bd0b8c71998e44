// Threads of the packed operators: those of Paddle's OpenMP runtime.
#pragma once

#include <cstdint>
#include <exception>

#include "core/common/float_environment.h"

namespace paddle_ngraph::mkl_packed {

// FLAGS_ngraph_num_threads; every core the process may use when that is 0.
int max_threads();

// What the next parallel region of this thread gets.
int num_omp_threads();

// Paddle keeps OpenMP at one thread; this raises it for a while, for the calling thread alone.
// Regions get just as many then: oneDNN shares out work by the number that OpenMP promises, and
// with fewer (OMP_DYNAMIC, OMP_THREAD_LIMIT) a part would not be done.
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

// With fewer rows in a share, reading the packed weight takes longer than multiplying.
constexpr int64_t kMinRowsPerShard = 16;

// How many rows of a batch one thread takes through all steps. Sequences do not meet, so that
// threads with rows of their own need not wait for each other in any step. Where the batch does not
// divide, or is too small, it is one share, and all threads work on each of its products.
inline int64_t rows_per_shard(int64_t batch, int64_t threads = num_omp_threads()) {
  const bool divides = batch % threads == 0 && batch / threads >= kMinRowsPerShard;
  return divides ? batch / threads : batch;
}

// Calls `body(shard)` for every share, side by side. What a body throws goes on.
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

// Work below which a region is not worth its threads: elements, times what each costs.
constexpr int64_t kMinParallelElements = 8192;

// Calls `body(row, first, count)` for pieces of a [rows, size] matrix, side by side.
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
