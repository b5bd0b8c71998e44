// Ctrl-C while the core calls Python, on its way to the user: out of the core, through Paddle,
// which hands on no more of an exception than its text, and into Python again.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>

namespace paddle_ngraph {

// What Python raised is no error but a wish to stop (KeyboardInterrupt, SystemExit). No
// std::exception: what handles failures, by running something else instead, does not handle this.
class PythonInterrupt {
 public:
  // Nothing if it is an error. Needs the GIL.
  static std::optional<PythonInterrupt> of(const pybind11::error_already_set& error);

  // Lets Python raise it again. Needs the GIL.
  void restore() const;

 private:
  explicit PythonInterrupt(const pybind11::error_already_set& error) : error_(error) {}

  pybind11::error_already_set error_;  // takes the GIL where it needs it
};

// While one exists in the main thread, no handler of a signal runs: a run must not begin inside of
// a run. Those of signals that came meanwhile run when Python's next instruction does. Needs the
// GIL.
class DeferredSignals {
 public:
  // Whether Ctrl-C may raise KeyboardInterrupt, which it does natively.
  enum class CtrlC { kRaises, kDeferred };

  explicit DeferredSignals(CtrlC ctrl_c);
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

 private:
  pybind11::object deferral_;
};

// Sets what Python calls when a signal comes, and leaves what the system does. Needs the GIL.
void set_signal_handler(int number, const pybind11::object& handler);

// Throws an exception of Paddle's that stands for it, where Paddle has called the core.
[[noreturn]] void throw_as_paddle_error(const PythonInterrupt& interruption);

// Whether the text of an exception stands for an interruption that was hidden; Python then raises
// that. Needs the GIL.
bool restore_interruption(const char* text);

// The same for the error that Python raises now. Needs the GIL.
void restore_interruption();

}  // namespace paddle_ngraph
