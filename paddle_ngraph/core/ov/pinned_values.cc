#include "core/ov/pinned_values.h"

#include <memory>

namespace paddle_ngraph {

ExclusiveRuns::ExclusiveRuns() : state_(std::make_unique<ProcessState>().release()) {}

ExclusiveRuns::~ExclusiveRuns() { std::unique_ptr<ProcessState>(state_.load()).reset(); }

ExclusiveRuns::RunLock ExclusiveRuns::lock_run() {
  ProcessState* state = state_;
  if (state->process != getpid()) {
    auto new_state = std::make_unique<ProcessState>();
    // In a forked process, a new state replaces that of the parent, which is not freed: its mutex
    // may be locked. If another thread was first, `state` is that thread's.
    if (state_.compare_exchange_strong(state, new_state.get())) state = new_state.release();
  }
  return RunLock(state->mutex);
}

}  // namespace paddle_ngraph
