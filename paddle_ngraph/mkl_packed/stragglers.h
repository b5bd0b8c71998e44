// Threads that meet in each step, on cores where something else runs, too.
//
// Who waits for a thread that has lost its core waits for time slices of the system's:
// milliseconds, hundreds of times what a step takes, and that in each step. So steps are timed.
// Where the others were late, one thread goes on alone for a while.
#pragma once

#include <chrono>
#include <cstdint>

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Whether they were late lately, so that steps are taken alone.
bool is_straggling();

// Has steps be taken alone for so long.
void run_single_threaded_for(std::chrono::nanoseconds time);

// Times the steps in which threads meet.
class StepTimer {
 public:
  // Of so many floating-point operations each, multiplied by this library, on the threads that the
  // calling one may have.
  StepTimer(int64_t work, const GemmProvider& gemm);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  // After each step: whether the others were late. The calling thread is alone then.
  bool has_straggler();

 private:
  uint64_t step_key_;
  bool is_parallel_;
  int64_t fastest_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace paddle_ngraph::mkl_packed
