// Locks that are free in a forked process.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace paddle_ngraph {

// A mutex that no other thread holds while the process forks: the fork waits for it. Otherwise a
// mutex that another thread holds at that moment would stay locked in the child, which does not
// have that thread.
//
// For objects that are never destroyed and that are used even where the engine runs no program: by
// code that holds tensors, drops executors or reads variables. A thread that holds one takes no
// other, and does not wait for the GIL, which the forking thread holds.
class ForkSafeMutex : public std::mutex {
 public:
  ForkSafeMutex();
};

// While one lives, the process does not fork: a fork waits for all of them. For code that takes
// locks which no fork waits for by itself, among them those of objects that are destroyed and of
// libraries. Short work only, which does not wait for the GIL, starts no parallel region and makes
// no second one. It may take a ForkSafeMutex; a thread that holds one makes none of these.
class ForkBlocker {
 public:
  ForkBlocker();
  ForkBlocker(const ForkBlocker&) = delete;
  ForkBlocker& operator=(const ForkBlocker&) = delete;

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace paddle_ngraph
