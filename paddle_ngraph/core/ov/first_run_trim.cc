#include "core/ov/first_run_trim.h"

#include <atomic>

#include "core/ov/trim_memory.h"

namespace paddle_ngraph {

namespace {

std::atomic<bool>& is_pending() {
  static std::atomic<bool> flag{false};
  return flag;
}

}  // namespace

FirstRunTrim::FirstRunTrim() { is_pending() = true; }

// Trims the heap in any case: an operator of another function may have cleared the flag for itself,
// or this run may have executed no operator of ours.
FirstRunTrim::~FirstRunTrim() {
  is_pending() = false;
  trim_free_memory();
}

void FirstRunTrim::on_operator_start() {
  if (is_pending().load(std::memory_order_relaxed) && is_pending().exchange(false)) {
    trim_free_memory();
  }
}

}  // namespace paddle_ngraph
