// Fork-safe mutexes: unlocked in a forked process, whichever thread locked them in the parent.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace paddle_ngraph {

// A mutex that no other thread holds while the process forks: the fork waits for the mutex.
// Otherwise a mutex that another thread holds at the fork would stay locked in the child, which
// lacks that thread.
//
// For objects that are never destroyed and that are used even while the engine runs no program: by
// code that retains tensors, drops executors or reads variables. A thread that holds a
// ForkSafeMutex locks no other one, and does not wait for the GIL, which the forking thread holds.
class ForkSafeMutex : public std::mutex {
 public:
  ForkSafeMutex();
};

// Number of forks between the process that has loaded this library and this one. For objects whose
// mutex is held for long: in a forked process they get another one.
int fork_count();

// Blocks forks during its lifetime: a fork waits until no instance is left. For code that takes
// locks for which no fork waits otherwise, such as locks of libraries and of objects that are
// destroyed. For short work only, which does not wait for the GIL, starts no parallel region and
// creates no second instance. The work may lock a ForkSafeMutex; a thread that holds a
// ForkSafeMutex creates no instance.
class ForkBlocker {
 public:
  ForkBlocker();
  ForkBlocker(const ForkBlocker&) = delete;
  ForkBlocker& operator=(const ForkBlocker&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace paddle_ngraph
