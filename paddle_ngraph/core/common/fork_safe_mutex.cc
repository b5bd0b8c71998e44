#include "core/common/fork_safe_mutex.h"

#include <memory>
#include <vector>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

struct Mutexes {
  std::mutex mutex;  // guards the list; held during a fork like those in it
  std::vector<std::mutex*> list;

  static Mutexes& instance() {
    static Mutexes* const mutexes = std::make_unique<Mutexes>().release();
    return *mutexes;
  }
};

void hold_all() {
  auto& mutexes = Mutexes::instance();
  mutexes.mutex.lock();
  for (auto* mutex : mutexes.list) mutex->lock();
}

// In the parent, and in the child, whose only thread is a copy of the one that holds them.
void free_all() {
  auto& mutexes = Mutexes::instance();
  for (auto* mutex : mutexes.list) mutex->unlock();
  mutexes.mutex.unlock();
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
  static const int registered = pthread_atfork(hold_all, free_all, free_all);
  static_cast<void>(registered);  // fails only if no memory is left; forks then do not wait
  auto& mutexes = Mutexes::instance();
  std::lock_guard<std::mutex> lock(mutexes.mutex);
  mutexes.list.push_back(this);
}

}  // namespace paddle_ngraph
