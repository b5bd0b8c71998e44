// Detection of stragglers: threads that synchronize in each step, on cores that run other work,
// too.
//
// Waiting for a thread that has lost its core takes time slices of the system: milliseconds,
// hundreds of times the duration of a step, and this in each step. Therefore steps are timed. If
// other threads were late, a single thread computes alone for a while.
#pragma once

#include <chrono>
#include <cstdint>

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Whether other threads were late recently, so that for a while a single thread computes the steps
// of recurrent layers.
bool is_straggling();

// For the duration `time`, has a single thread compute the steps of recurrent layers.
void run_single_threaded_for(std::chrono::nanoseconds time);

// The sizes of a matmul c[m, n] = a[m, k] * b[k, n].
struct MatmulSizes {
  int64_t m, n, k;
  int64_t flops() const { return 2 * m * n * k; }
};

// Measures the durations of steps in which threads synchronize, to find late threads.
class StepTimer {
 public:
  // Steps whose matmul has equal sizes, number of threads and `gemm` are expected to take equally
  // long.
  StepTimer(const MatmulSizes& matmul, const GemmProvider& gemm);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  // Called after each step. Returns whether other threads were late; from then on, the calling
  // thread computes alone.
  bool has_straggler();

 private:
  uint64_t step_key_;
  bool is_parallel_;
  int64_t fastest_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace paddle_ngraph::mkl_packed
