#include "core/common/tbb_fork_state.h"

#include <atomic>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

std::atomic<bool> are_lost{false};

void mark_tbb_threads_lost() { are_lost = true; }

}  // namespace

void mark_tbb_started() {
  // pthread_atfork() fails only if no memory is left; the child then takes TBB's threads for
  // existing.
  static const int registered = pthread_atfork(nullptr, nullptr, mark_tbb_threads_lost);
  static_cast<void>(registered);
}

bool are_tbb_threads_lost() { return are_lost; }

}  // namespace paddle_ngraph
