// Sections of the package's own code in which no Python code from outside runs in this thread.
//
// Python runs the handlers of signals wherever the main thread runs Python, and raises an exception
// that another thread sets (PyThreadState_SetAsyncExc) wherever the thread runs Python. Inside a
// section, both are recorded, by C code, and delivered once at its end. So an exception that is
// raised inside a section is one of the package, Paddle or OpenVINO, whatever its type.
#pragma once

#include <pybind11/pytypes.h>

#include <memory>

namespace paddle_ngraph {

// A section, during the lifetime of an instance. Sections may be nested; everything is delivered at
// the end of the outermost one. All functions need the GIL.
//
// Only Python's table of handlers is changed. The reaction of the system to a signal is unchanged:
// other code may have configured it (faulthandler, signal.siginterrupt), and a byte for
// signal.set_wakeup_fd (asyncio) is written once.
class DeferredSignals {
 public:
  enum class Mode {
    // Everything is deferred.
    kDeferred,
    // Ctrl-C raises KeyboardInterrupt inside the section, unless the user has a handler for it.
    kCtrlCRaises,
    // As around the section; kCtrlCRaises if there is no other, or one of mode kRecognized.
    kInherited,
    // Handlers run inside the section, unless it is inside another one; is_from_outside()
    // recognizes what they have raised. For work that takes long. Exceptions of other threads are
    // deferred.
    kRecognized
  };

  // Prepares the process for sections, when the module is imported: Python code of the user may run
  // meanwhile. Before that there may be no section.
  static void initialize();
  // Restores the handlers in a child process that was forked by another thread than the main one,
  // in the middle of a section of the main one.
  static void restore_after_fork();

  explicit DeferredSignals(Mode mode);
  // Ends the section. Everything recorded is delivered at Python's next instruction.
  ~DeferredSignals();
  DeferredSignals(const DeferredSignals&) = delete;
  DeferredSignals& operator=(const DeferredSignals&) = delete;

  // Throws pybind11::error_already_set for a Ctrl-C that arrived before, if Ctrl-C raises.
  void check_ctrl_c() const;
  // Calls the handlers of all recorded signals, even if one of them raises, and throws their last
  // exception. Does nothing where handlers do not run, or in another thread than the main one.
  static void deliver();
  // Whether a signal or an exception waits in this thread, other than signals whose handler has
  // raised nothing when it was last called by deliver().
  static bool is_pending();
  // Whether a handler of a signal has raised an exception in a section of mode kRecognized around.
  static bool is_from_outside(const pybind11::handle& exception);

 private:
  bool is_in_main_thread_;
  bool replaces_ = false;  // whether it has replaced the handlers
};

// Context manager for Python, whose exit calls the handlers.
class DeferredSignalsScope {
 public:
  explicit DeferredSignalsScope(DeferredSignals::Mode mode) : mode_(mode) {}

  void enter();
  void exit();

 private:
  DeferredSignals::Mode mode_;
  std::unique_ptr<DeferredSignals> section_;
};

}  // namespace paddle_ngraph
