// Propagation of Ctrl-C raised while the core calls Python: out of the core, through Paddle, which
// forwards only the text of an exception, and into Python again.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>

namespace paddle_ngraph {

// A Python exception that is a request to stop, not an error (KeyboardInterrupt, SystemExit). Not a
// std::exception, so fallback handlers of failures do not catch it.
class PythonInterrupt {
 public:
  // Returns the interruption that `error` is; nothing if it is an ordinary error. Needs the GIL.
  static std::optional<PythonInterrupt> of(const pybind11::error_already_set& error);

  // Restores the exception as Python's current error. Needs the GIL.
  void restore() const;

 private:
  explicit PythonInterrupt(const pybind11::error_already_set& error) : error_(error) {}

  pybind11::error_already_set error_;  // acquires the GIL where needed
};

// Defers Python signal handlers while an instance exists in the main thread: a run must not begin
// inside a run. Handlers of the signals that arrived in between run at Python's next instruction.
// Needs the GIL.
class DeferredSignals {
 public:
  // Whether Ctrl-C may raise KeyboardInterrupt, as it does in plain Paddle.
  enum class CtrlC { kRaises, kDeferred };

  explicit DeferredSignals(CtrlC ctrl_c);
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

 private:
  pybind11::object deferral_;
};

// Sets Python's handler of a signal, and leaves the operating system's action unchanged. Needs the
// GIL.
void set_signal_handler(int number, const pybind11::object& handler);

// Throws a Paddle exception as the placeholder of the interruption, in code called by Paddle.
[[noreturn]] void throw_as_paddle_error(const PythonInterrupt& interruption);

// Whether the text of an exception is the placeholder of a hidden interruption; if so, the
// interruption becomes Python's current error. Needs the GIL.
bool restore_interruption(const char* text);

// Calls restore_interruption with the text of Python's current error. Needs the GIL.
void restore_interruption();

}  // namespace paddle_ngraph
