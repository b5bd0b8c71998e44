#include "core/common/fork_safe_mutex.h"

#include <memory>
#include <vector>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

// Held exclusively during a fork, and before the mutexes. Once a fork waits, nobody else gets it: a
// standard mutex would let the fork wait for as long as the work of threads overlaps.
pthread_rwlock_t& forks() {
  static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
  return lock;
}

thread_local int num_of_thread = 0;  // of NoForkMeanwhile

struct Mutexes {
  std::mutex mutex;  // guards the list; held during a fork like those in it
  std::vector<std::mutex*> list;

  static Mutexes& instance() {
    static Mutexes* const mutexes = std::make_unique<Mutexes>().release();
    return *mutexes;
  }
};

void hold_all() {
  pthread_rwlock_wrlock(&forks());
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
  pthread_rwlock_unlock(&forks());
}

// The thread has another number here, by which the C library knows who holds a shared mutex.
void free_in_child() {
  free_mutexes();
  forks() = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
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
  if (num_of_thread++ > 0) return;  // a fork that waits would keep the second one waiting
  wait_in_forks();
  pthread_rwlock_rdlock(&forks());
}

NoForkMeanwhile::~NoForkMeanwhile() {
  if (--num_of_thread == 0) pthread_rwlock_unlock(&forks());
}

}  // namespace paddle_ngraph
