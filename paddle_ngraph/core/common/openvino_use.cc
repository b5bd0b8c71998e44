#include "core/common/openvino_use.h"

#include <atomic>
#include <chrono>
#include <cstdint>

#include <pthread.h>

#include "core/common/error.h"
#include "core/common/resting_threads.h"

namespace paddle_ngraph {

namespace {

// Number of threads that use OpenVINO, and of the nested uses of this thread.
std::atomic<int> num_threads_in_use{0};
thread_local int num_own_uses = 0;
std::atomic<bool> is_lost{false};
std::atomic<bool> has_idle_compiler{false};
std::atomic<bool> is_compiler_lost{false};

// How long a fork waits for the threads of TBB to go to sleep after a use: until then they hold
// locks of TBB at times, which stay locked in the child.
constexpr auto kRestLimit = std::chrono::milliseconds(20);
std::atomic<uint64_t> num_uses{0};
// The number of uses after which all threads slept, of the fork that has begun.
constexpr uint64_t kBusy = UINT64_MAX;
std::atomic<uint64_t> num_uses_at_rest{0};

void before_fork() {
  const uint64_t uses = num_uses;
  if (uses > 0) num_uses_at_rest = other_threads_rest(kRestLimit) ? uses : kBusy;
}

void after_fork_in_child() {
  const int num_own_threads = num_own_uses > 0 ? 1 : 0;
  if (num_threads_in_use.exchange(num_own_threads) != num_own_threads) is_lost = true;
  if (num_uses != num_uses_at_rest) is_lost = true;
  num_uses_at_rest = num_uses.load();
  if (has_idle_compiler) is_compiler_lost = true;
}

// pthread_atfork() fails only if no memory is left.
const int registered = pthread_atfork(before_fork, nullptr, after_fork_in_child);

}  // namespace

OpenVinoUse::OpenVinoUse() {
  static_cast<void>(registered);
  if (is_lost) {
    throw NgraphError(
        "this process was forked while another thread built or ran a function, or had just done "
        "so: "
        "OpenVINO would wait for that thread forever");
  }
  if (num_own_uses++ > 0) return;
  ++num_threads_in_use;
  ++num_uses;
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
