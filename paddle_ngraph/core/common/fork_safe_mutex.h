// Locks that a forked process finds free.
#pragma once

#include <mutex>

namespace paddle_ngraph {

// A mutex that nobody has while the process forks: the fork waits. Without that, what another
// thread has at that moment stays locked in the child, which lacks the thread.
//
// For objects that are never destroyed, and that programs meet which are not run by the engine:
// those hold tensors, drop executors, read variables. Whoever has one takes no other one, and does
// not wait for Python's lock, which the thread that forks has.
class ForkSafeMutex : public std::mutex {
 public:
  ForkSafeMutex();
};

}  // namespace paddle_ngraph
