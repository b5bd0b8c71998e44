#include "core/common/fork_safe_mutex.h"

#include <memory>
#include <new>
#include <vector>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

// Held exclusively during a fork, and before the mutexes.
std::shared_mutex& forks() {
  static std::shared_mutex* const mutex = std::make_unique<std::shared_mutex>().release();
  return *mutex;
}

struct Mutexes {
  std::mutex mutex;  // guards the list; held during a fork like those in it
  std::vector<std::mutex*> list;

  static Mutexes& instance() {
    static Mutexes* const mutexes = std::make_unique<Mutexes>().release();
    return *mutexes;
  }
};

void hold_all() {
  forks().lock();
  auto& mutexes = Mutexes::instance();
  mutexes.mutex.lock();
  for (auto* mutex : mutexes.list) mutex->lock();
}

// Also in the child, whose only thread is a copy of the one that holds them.
void free_mutexes() {
  auto& mutexes = Mutexes::instance();
  for (auto* mutex : mutexes.list) mutex->unlock();
  mutexes.mutex.unlock();
}

void free_in_parent() {
  free_mutexes();
  forks().unlock();
}

// The thread has another number here, by which the C library knows who holds a shared mutex.
void free_in_child() {
  free_mutexes();
  new (&forks()) std::shared_mutex;
}

void wait_in_forks() {
  static const int registered = pthread_atfork(hold_all, free_in_parent, free_in_child);
  static_cast<void>(registered);  // fails only if no memory is left; forks then do not wait
}

}  // namespace

ForkSafeMutex::ForkSafeMutex() {
  wait_in_forks();
  auto& mutexes = Mutexes::instance();
  std::lock_guard<std::mutex> lock(mutexes.mutex);
  mutexes.list.push_back(this);
}

NoForkMeanwhile::NoForkMeanwhile() {
  wait_in_forks();
  lock_ = std::shared_lock(forks());
}

}  // namespace paddle_ngraph
