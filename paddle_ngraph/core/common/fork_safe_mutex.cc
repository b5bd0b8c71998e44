#include "core/common/fork_safe_mutex.h"

#include <memory>
#include <new>
#include <vector>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

// Locked exclusively during a fork, before the mutexes.
std::shared_mutex& fork_mutex() {
  static std::shared_mutex* const mutex = std::make_unique<std::shared_mutex>().release();
  return *mutex;
}

struct MutexRegistry {
  std::mutex mutex;  // guards the list; locked during a fork like those in it
  std::vector<std::mutex*> list;

  static MutexRegistry& instance() {
    static MutexRegistry* const mutexes = std::make_unique<MutexRegistry>().release();
    return *mutexes;
  }
};

void lock_all() {
  fork_mutex().lock();
  auto& mutexes = MutexRegistry::instance();
  mutexes.mutex.lock();
  for (auto* mutex : mutexes.list) mutex->lock();
}

// Called in the child too, whose only thread is a copy of the thread that locked them.
void unlock_all() {
  auto& mutexes = MutexRegistry::instance();
  for (auto* mutex : mutexes.list) mutex->unlock();
  mutexes.mutex.unlock();
}

void after_fork_in_parent() {
  unlock_all();
  fork_mutex().unlock();
}

// The thread has another id in the child, and the C library identifies the owner of a shared mutex
// by its id.
void after_fork_in_child() {
  unlock_all();
  new (&fork_mutex()) std::shared_mutex;
}

void register_fork_handlers() {
  static const int registered = pthread_atfork(lock_all, after_fork_in_parent, after_fork_in_child);
  // The registration fails only without memory; forks then do not wait.
  static_cast<void>(registered);
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
  register_fork_handlers();
  auto& mutexes = MutexRegistry::instance();
  std::lock_guard<std::mutex> lock(mutexes.mutex);
  mutexes.list.push_back(this);
}

ForkBlocker::ForkBlocker() {
  register_fork_handlers();
  lock_ = std::shared_lock(fork_mutex());
}

}  // namespace paddle_ngraph
