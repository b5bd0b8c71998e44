// Faults for tests: makes a step of the engine fail. Costs one read of a number where no fault is
// set.
#pragma once

#include <atomic>
#include <new>
#include <string>

#include "core/common/error.h"

namespace paddle_ngraph {

// Where the engine may fail: what it does between an operator's inputs and its results.
enum class Step : int { kNone, kData, kCompile, kLoad, kStore, kAllocate, kDraw, kRun, kWrite };

inline std::atomic<Step>& failing_step() {
  static std::atomic<Step> step{Step::kNone};
  return step;
}

// Throws if the step is to fail: InvalidInput for kData, which makes every run native,
// std::bad_alloc for kAllocate, NgraphError for others.
inline void may_fail(Step step) {
  if (failing_step().load(std::memory_order_relaxed) != step) return;
  if (step == Step::kAllocate) throw std::bad_alloc();
  if (step == Step::kData) throw InvalidInput("a fault was injected");
  throw NgraphError("a fault was injected");
}

// Lets the step of this name fail from now on; empty for none. Throws NgraphError for other names.
inline void fail_at(const std::string& name) {
  static const std::string names[] = {"",         "data", "compile", "load", "store",
                                      "allocate", "draw", "run",     "write"};
  int step = 0;
  for (const auto& known : names) {
    if (known == name) return failing_step().store(static_cast<Step>(step));
    ++step;
  }
  throw NgraphError(concat("the engine has no step '", name, "'"));
}

}  // namespace paddle_ngraph
