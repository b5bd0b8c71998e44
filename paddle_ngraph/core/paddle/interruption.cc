#include "core/paddle/interruption.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "paddle/common/enforce.h"

#include "core/common/python_casts.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// Text of the Paddle exception that stands for an interruption while it passes through Paddle.
constexpr char kInterruptMarker[] = "<interrupted: paddle_ngraph>";

// The last hidden interruption. Usually there is at most one, as only the main thread is
// interrupted.
class PendingInterrupt {
 public:
  static PendingInterrupt& instance() {
    // Never destroyed, since Python, whose exception it contains, is finalized before static
    // objects.
    static PendingInterrupt* const hidden = std::make_unique<PendingInterrupt>().release();
    return *hidden;
  }

  void put(const PythonInterrupt& interruption) {
    std::optional<PythonInterrupt> before = interruption;
    const std::lock_guard<std::mutex> lock(mutex_);
    before.swap(interruption_);
  }

  std::optional<PythonInterrupt> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(interruption_, std::nullopt);
  }

  bool is_empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !interruption_.has_value();
  }

 private:
  mutable std::mutex mutex_;
  std::optional<PythonInterrupt> interruption_;
};

}  // namespace

std::optional<PythonInterrupt> PythonInterrupt::of(const py::error_already_set& error) {
  if (error.matches(PyExc_Exception)) return std::nullopt;
  return PythonInterrupt(error);
}

PythonInterrupt PythonInterrupt::from_user(const py::error_already_set& error) {
  return PythonInterrupt(error);
}

void PythonInterrupt::restore() const { py::error_already_set(error_).restore(); }

void throw_as_paddle_error(const PythonInterrupt& interruption) {
  PendingInterrupt::instance().put(interruption);
  PADDLE_THROW(common::errors::External("%s", kInterruptMarker));
}

// Finds interruptions by the text, since Paddle preserves nothing else of an exception.
bool restore_interruption(const char* text) {
  if (std::strstr(text, kInterruptMarker) == nullptr) return false;
  if (const auto hidden = PendingInterrupt::instance().take()) {
    hidden->restore();
  } else {  // another thread has restored the exception already: a new one takes its place
    PyErr_SetNone(PyExc_KeyboardInterrupt);
  }
  return true;
}

void restore_interruption() {
  if (PyErr_Occurred() == nullptr || PendingInterrupt::instance().is_empty()) return;
  py::error_already_set error;
  if (!restore_interruption(error.what())) error.restore();
}

}  // namespace paddle_ngraph
