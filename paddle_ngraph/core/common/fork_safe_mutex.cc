#include "core/common/fork_safe_mutex.h"

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

std::atomic<int> num_forks{0};

// Shared by the ForkBlockers that exist: a fork locks it exclusively, before the registered
// mutexes.
std::shared_mutex& fork_mutex() {
  static std::shared_mutex* const mutex = std::make_unique<std::shared_mutex>().release();
  return *mutex;
}

struct MutexRegistry {
  // Guards `list`. Before a fork, this mutex and all mutexes in the list are locked.
  std::mutex mutex;
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

// Unlocks the mutexes that lock_all() has locked. The child may unlock them too: its only thread is
// a copy of the thread that called fork(), and so owns them.
void unlock_all() {
  auto& mutexes = MutexRegistry::instance();
  for (auto* mutex : mutexes.list) mutex->unlock();
  mutexes.mutex.unlock();
}

void after_fork_in_parent() {
  unlock_all();
  fork_mutex().unlock();
}

// Replaces the shared mutex of forks by a new one instead of unlocking it: the C library identifies
// the owner by its thread id, and the only thread of the child has another id than in the parent.
void after_fork_in_child() {
  ++num_forks;
  unlock_all();
  new (&fork_mutex()) std::shared_mutex;
}

void register_fork_handlers() {
  static const int registered = pthread_atfork(lock_all, after_fork_in_parent, after_fork_in_child);
  // pthread_atfork() fails only if no memory is left; forks then do not wait for the mutexes.
  static_cast<void>(registered);
}

}  // namespace

int fork_count() {
  static const bool is_registered = (register_fork_handlers(), true);
  static_cast<void>(is_registered);
  return num_forks;
}

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
