// Switches gradients of dynamic mode off or on for a scope.
#pragma once

#include <pybind11/pytypes.h>

#include <utility>

namespace paddle_ngraph {

// Context manager: operators of this thread have gradients inside `with`, or none. No signal
// handler can run between the switch and Python's registration of the exit: Paddle's
// `set_grad_enabled` is Python code, and an exception in the middle of it would make the temporary
// mode permanent.
class __attribute__((visibility("hidden"))) GradientMode {
 public:
  // `is_on` and `set`: Paddle's own C functions, since Python functions could run other code.
  GradientMode(pybind11::object is_on, pybind11::object set, bool on)
      : is_on_(std::move(is_on)), set_(std::move(set)), on_(on) {}

  void enter() {
    before_ = is_on_();
    set_(on_);
  }
  void exit() const { set_(before_); }

 private:
  pybind11::object is_on_, set_, before_;
  bool on_;
};

}  // namespace paddle_ngraph
