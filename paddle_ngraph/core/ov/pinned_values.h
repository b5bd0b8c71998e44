// What a run leaves in the memory of its function, for the steps that follow it.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace paddle_ngraph {

// Memory of floats.
struct FloatSpan {
  float* data;
  size_t size;
};

// Runs of a function that holds values take turns: a turn ends when nobody needs the values any
// more, which are where the next run computes.
class ExclusiveRuns {
 public:
  using RunLock = std::unique_lock<std::mutex>;

  ExclusiveRuns();
  ~ExclusiveRuns();
  ExclusiveRuns(const ExclusiveRuns&) = delete;
  ExclusiveRuns& operator=(const ExclusiveRuns&) = delete;

  // Waits for the turn.
  RunLock lock_run();

 private:
  // A forked process has a mutex of its own: the thread that holds the other one is not there.
  struct ProcessState {
    const pid_t process = getpid();
    std::mutex mutex;
  };

  std::atomic<ProcessState*> state_;
};

// The values that a run holds, valid as long as this and the function live. A thread that has one
// must not run the function.
struct PinnedValues {
  std::vector<FloatSpan> values;
  ExclusiveRuns::RunLock run_lock;
};

}  // namespace paddle_ngraph
