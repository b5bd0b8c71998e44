#include "core/common/openvino_use.h"

#include <atomic>

#include <pthread.h>

#include "core/common/error.h"

namespace paddle_ngraph {

namespace {

// Number of threads that use OpenVINO, and of the nested uses of this thread.
std::atomic<int> num_threads_in_use{0};
thread_local int num_own_uses = 0;
std::atomic<bool> is_lost{false};
std::atomic<bool> has_idle_compiler{false};
std::atomic<bool> is_compiler_lost{false};

void after_fork_in_child() {
  const int num_own_threads = num_own_uses > 0 ? 1 : 0;
  if (num_threads_in_use.exchange(num_own_threads) != num_own_threads) is_lost = true;
  if (has_idle_compiler) is_compiler_lost = true;
}

// pthread_atfork() fails only if no memory is left.
const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

OpenVinoUse::OpenVinoUse() {
  static_cast<void>(registered);
  if (is_lost) {
    throw NgraphError(
        "this process was forked while another thread built or ran a function: OpenVINO would wait "
        "for that thread forever");
  }
  if (num_own_uses++ == 0) ++num_threads_in_use;
}

OpenVinoUse::~OpenVinoUse() {
  if (--num_own_uses == 0) --num_threads_in_use;
}

bool is_openvino_lost() { return is_lost; }

void note_idle_compiler() { has_idle_compiler = true; }

void require_compiler() {
  if (!is_compiler_lost) return;
  is_lost = true;
  throw NgraphError(
      "this process was forked after a function had been destroyed: OpenVINO would wait forever "
      "for the thread that was to compile the next one");
}

}  // namespace paddle_ngraph
