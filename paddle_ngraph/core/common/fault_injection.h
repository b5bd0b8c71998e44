// Fault injection for tests: makes a step of the engine fail. Costs one atomic read where no fault
// is set.
#pragma once

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "core/common/error.h"

namespace paddle_ngraph {

// Steps of the engine between an operator's inputs and its results, each of which may fail: tests
// inject faults there.
enum class Step : int {
  kNone,
  kData,
  kCompile,
  kLoad,
  kStore,
  kAllocate,
  kDraw,
  kBind,
  kRun,
  kWrite,
  kCopy,    // the copies of a verified run
  kUpdate,  // an update of an optimizer in dynamic mode, which is dropped
  kLayer    // a packed layer or its gradient, whose first result is wrong
};

struct Fault {
  std::atomic<Step> step{Step::kNone};
  std::atomic<bool> blocks{false};  // whether threads that reach the step wait instead of failing
  std::atomic<int> blocked_threads{0};  // number of threads that inject_fault() blocks

  static Fault& instance() {
    static Fault fault;
    return fault;
  }
};

// Whether the step is set to fail, for a step that yields a wrong result instead of an error.
inline bool has_fault(Step step) {
  return Fault::instance().step.load(std::memory_order_relaxed) == step;
}

// Throws if the step is set to fail: InvalidInput for kData, which makes every run fall back to
// Throws if the step is set to fail: InvalidInput for kData, which makes every run fall back to
// Paddle, std::bad_alloc for kAllocate, kBind and kCopy, NgraphError for others: for kWrite, with a
// code and an operator. Blocks while the step is set to block.
inline void inject_fault(Step step) {
  Fault& fault = Fault::instance();
  if (fault.step.load(std::memory_order_relaxed) != step) return;
  if (fault.blocks) {
    ++fault.blocked_threads;
    while (fault.step == step) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --fault.blocked_threads;
    return;
  }
  if (step == Step::kAllocate || step == Step::kBind || step == Step::kCopy) throw std::bad_alloc();
  if (step == Step::kData) throw InvalidInput("a fault was injected");
  const auto code = step == Step::kWrite ? ErrorCode::kInt32Overflow : ErrorCode::kGeneral;
  throw NgraphError("a fault was injected", code, step == Step::kWrite ? 0 : kNoOperator);
}

// Sets the step of this name to fail, or to block; an empty name sets none. Throws NgraphError for
// other names.
inline void fail_at(const std::string& name, bool blocks = false) {
  static const std::string names[] = {"",         "data",   "compile", "load", "store",
                                      "allocate", "draw",   "bind",    "run",  "write",
                                      "copy",     "update", "layer"};
  int step = 0;
  for (const auto& known : names) {
    if (known == name) {
      Fault::instance().blocks = blocks;
      Fault::instance().step = static_cast<Step>(step);
      return;
    }
    ++step;
  }
  throw NgraphError(concat("the engine has no step '", name, "'"));
}

}  // namespace paddle_ngraph
