// Gradients on or off for a while.
#pragma once

#include <pybind11/pytypes.h>

#include <utility>

namespace paddle_ngraph {

// Inside of `with`, operators of this thread have gradients, or none. No signal comes between what
// it switches and Python's own note that it is to be left: Paddle's `set_grad_enabled` is Python,
// and an exception in the middle of it leaves them as they should only have been for a while.
class __attribute__((visibility("hidden"))) GradientMode {
 public:
  // is_on, set: Paddle's own, which are no Python either.
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
