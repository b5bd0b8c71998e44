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
struct Floats {
  float* data;
  size_t size;
};

// Runs of a function that holds values take turns: a turn ends when nobody needs the values any
// more, which are where the next run computes.
class Turns {
 public:
  using Turn = std::unique_lock<std::mutex>;

  Turns();
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Waits for the turn.
  Turn take();

 private:
  // A forked process has a mutex of its own: the thread that holds the other one is not there.
  struct OfProcess {
    const pid_t process = getpid();
    std::mutex mutex;
  };

  std::atomic<OfProcess*> now_;
};

// The values that a run holds, valid as long as this and the function live. A thread that has one
// must not run the function.
struct Held {
  std::vector<Floats> values;
  Turns::Turn turn;
};

}  // namespace paddle_ngraph
