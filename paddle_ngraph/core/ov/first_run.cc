#include "core/ov/first_run.h"

#include <atomic>

#include "core/ov/free_memory.h"

namespace paddle_ngraph {

namespace {

std::atomic<bool>& is_awaited() {
  static std::atomic<bool> flag{false};
  return flag;
}

}  // namespace

FirstRun::FirstRun() { is_awaited() = true; }

// The operator of another function may have been meant, or there was none.
FirstRun::~FirstRun() {
  is_awaited() = false;
  return_free_memory();
}

void FirstRun::has_begun() {
  if (is_awaited().load(std::memory_order_relaxed) && is_awaited().exchange(false)) {
    return_free_memory();
  }
}

}  // namespace paddle_ngraph
