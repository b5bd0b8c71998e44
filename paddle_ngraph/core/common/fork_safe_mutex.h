// Locks that are free in a forked process.
#pragma once

#include <mutex>

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

}  // namespace paddle_ngraph
