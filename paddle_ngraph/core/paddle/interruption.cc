#include "core/paddle/interruption.h"

#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "paddle/common/enforce.h"

#include "core/common/python_calls.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// Part of the text of exceptions that stand for an interruption.
constexpr char kMark[] = "<interrupted: paddle_ngraph>";

// The interruption that was hidden last. Usually there is one at a time, as only the main thread is
// interrupted.
class Hidden {
 public:
  static Hidden& instance() {
    // Never destroyed: Python has ended by then.
    static Hidden* const hidden = std::make_unique<Hidden>().release();
    return *hidden;
  }

  void put(const Interrupted& interruption) {
    std::optional<Interrupted> before = interruption;
    const std::lock_guard<std::mutex> lock(mutex_);
    before.swap(interruption_);
  }

  std::optional<Interrupted> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(interruption_, std::nullopt);
  }

  bool is_empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !interruption_.has_value();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Interrupted> interruption_;
};

}  // namespace

std::optional<Interrupted> Interrupted::of(const py::error_already_set& error) {
  if (error.matches(PyExc_Exception)) return std::nullopt;
  return Interrupted(error);
}

void Interrupted::restore() const { py::error_already_set(error_).restore(); }

HeldSignals::HeldSignals(CtrlC ctrl_c)
    : held_(python(PythonCall::kHoldSignals)(ctrl_c == CtrlC::kRaises)) {}

HeldSignals::~HeldSignals() {
  try {
    held_.attr("end")();
  } catch (const py::error_already_set&) {  // it was Ctrl-C, which is to be raised by Python itself
    std::raise(SIGINT);
  }
  // In C, a handler of Python's only notes that it has to run.
  for (const auto& number : py::list(held_.attr("came"))) std::raise(number.cast<int>());
}

void hide_interruption(const Interrupted& interruption) {
  Hidden::instance().put(interruption);
  PADDLE_THROW(common::errors::External("%s", kMark));
}

bool restore_interruption(const char* text) {
  if (std::strstr(text, kMark) == nullptr) return false;
  if (const auto hidden = Hidden::instance().take()) {
    hidden->restore();
  } else {  // another thread has met it
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
  return true;
}

void restore_interruption() {
  if (PyErr_Occurred() == nullptr || Hidden::instance().is_empty()) return;
  py::error_already_set error;
  if (!restore_interruption(error.what())) error.restore();
}

}  // namespace paddle_ngraph
