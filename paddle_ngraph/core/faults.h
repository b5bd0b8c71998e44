// Faults for tests: a step of the engine that fails where it is told to. One read of a number where
// nobody asks for it.
#pragma once

#include <atomic>
#include <new>
#include <string>

#include "error.h"

namespace paddle_ngraph {

// Where the engine may fail: what it does between an operator's inputs and its results.
enum class Step : int { kNone, kCompile, kLoad, kStore, kAllocate, kDraw, kRun };

inline std::atomic<Step>& failing_step() {
  static std::atomic<Step> step{Step::kNone};
  return step;
}

// Throws where the step is to fail: std::bad_alloc for kAllocate, NgraphError for others.
inline void may_fail(Step step) {
  if (failing_step().load(std::memory_order_relaxed) != step) return;
  if (step == Step::kAllocate) throw std::bad_alloc();
  throw NgraphError("a fault was injected");
}

// "compile", "load", "store", "allocate", "draw", "run"; empty for none. Throws NgraphError for others.
inline void fail_at(const std::string& name) {
  static const std::string names[] = {"", "compile", "load", "store", "allocate", "draw", "run"};
  for (int step = 0; step < 7; ++step) {
    if (names[step] == name) return failing_step().store(static_cast<Step>(step));
  }
  throw NgraphError(concat("the engine has no step '", name, "'"));
}

}  // namespace paddle_ngraph
