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
#include "core/common/python_casts.h"

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

// Called by Python, in its main thread. The signals that came are not raised again: who waits for
// them at a file descriptor has been told.
int handle_signals(void* held) {
  try {
    py::reinterpret_steal<py::object>(static_cast<PyObject*>(held)).attr("handle")();
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

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
    if (!held_.attr("end")().cast<bool>()) return;
  } catch (const py::error_already_set& error) {  // Python itself is to raise it
    if (error.matches(PyExc_KeyboardInterrupt)) std::raise(SIGINT);
  }
  Py_AddPendingCall(&handle_signals, held_.release().ptr());
}

void set_signal_handler(int number, const py::object& handler) {
  struct sigaction action{};
  const bool is_known = sigaction(number, nullptr, &action) == 0;
  imported("_signal").attr("signal")(number, handler);
  if (is_known) sigaction(number, &action, nullptr);
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
