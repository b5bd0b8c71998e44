// Values that a run leaves in the memory of its function, for the updates that follow it.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace paddle_ngraph {

// The address and the length of an array of floats.
struct FloatSpan {
  float* data;
  size_t size;
};

// Makes runs of a function with pinned values exclusive: a lock is released when the values have no
// reader any more, because the next run computes in their memory.
class ExclusiveRuns {
 public:
  using RunLock = std::unique_lock<std::mutex>;

  ExclusiveRuns();
  ~ExclusiveRuns();
  ExclusiveRuns(const ExclusiveRuns&) = delete;
  ExclusiveRuns& operator=(const ExclusiveRuns&) = delete;

  // Waits until no other run has the lock, and takes the lock.
  RunLock lock_run();

 private:
  // The mutex of one process. A forked process gets its own: the thread that holds the parent's
  // does not exist there.
  struct ProcessState {
    const pid_t process = getpid();
    std::mutex mutex;
  };

  std::atomic<ProcessState*> state_;
};

// The pinned values of a run, valid during the lifetime of this object and of the function. A
// thread that has one must not run the function.
struct PinnedValues {
  std::vector<FloatSpan> values;
  ExclusiveRuns::RunLock run_lock;
};

}  // namespace paddle_ngraph
