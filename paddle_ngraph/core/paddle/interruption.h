// Propagation of Ctrl-C raised while the core calls Python: out of the core, through Paddle, which
// forwards only the text of an exception, and into Python again.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>

namespace paddle_ngraph {

// A Python exception that is a request to stop, not an error (KeyboardInterrupt, SystemExit), or
// one of a function of the user. Not a std::exception, so fallback handlers of failures do not
// catch it.
class PythonInterrupt {
 public:
  // The interruption that an exception is; nothing if the exception is an error. Needs the GIL.
  static std::optional<PythonInterrupt> of(const pybind11::error_already_set& error);

  // Any exception of a function of the user, which is to reach the caller as it is. Needs the GIL.
  static PythonInterrupt from_user(const pybind11::error_already_set& error);

  // Sets the stored exception as Python's current error again. Needs the GIL.
  void restore() const;

 private:
  explicit PythonInterrupt(const pybind11::error_already_set& error) : error_(error) {}

  pybind11::error_already_set error_;  // acquires the GIL itself when it is copied or destroyed
};

// Throws a Paddle exception as the placeholder of the interruption, in code called by Paddle.
[[noreturn]] void throw_as_paddle_error(const PythonInterrupt& interruption);

// Whether the text of an exception is the placeholder of a hidden interruption; if so, the
// interruption becomes Python's current error. Needs the GIL.
bool restore_interruption(const char* text);

// Calls restore_interruption() with the text of the exception that is Python's current error. Needs
// the GIL.
void restore_interruption();

}  // namespace paddle_ngraph
