#include "core/common/lost_threads.h"

#include <atomic>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

std::atomic<bool> are_lost{false};

void lose_threads() { are_lost = true; }

}  // namespace

void note_threads() {
  // Fails only if no memory is left.
  static const int registered = pthread_atfork(nullptr, nullptr, lose_threads);
  static_cast<void>(registered);
}

bool are_threads_lost() { return are_lost; }

}  // namespace paddle_ngraph
