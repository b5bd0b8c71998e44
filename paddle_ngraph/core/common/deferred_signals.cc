#include "core/common/deferred_signals.h"

#include <Python.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>
#include <pythread.h>

#include "core/common/python_callbacks.h"
#include "core/common/python_casts.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

using Mode = DeferredSignals::Mode;

PyObject* record_signal(PyObject* replaced, PyObject* args);

PyMethodDef substitute_definition = {"deferred_signal", record_signal, METH_VARARGS, nullptr};

// Takes Python's current error as an exception with traceback.
py::object take_error() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return py::reinterpret_steal<py::object>(value);
}

[[noreturn]] void raise(const py::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw py::error_already_set();
}

// One signal: its number, Python's substitute for the handler, and the handler that the substitute
// replaces, or has replaced last. Each handler has a substitute of its own: a handler that a
// section has set may call the substitute that was set before, for the earlier handler.
struct Signal {
  int number = 0;
  PyObject* python_number = nullptr;
  PyObject* substitute = nullptr;
  PyObject* handler = nullptr;
  bool is_replaced = false;
  bool is_harmless = false;  // whether the last call of the handler raised nothing
};

// The state of the main thread, guarded by the GIL. Never destroyed.
struct MainThread {
  std::vector<Mode> sections;  // the nested sections, the outermost one first; none inherits
  bool is_replaced = false;    // whether one of them has replaced the handlers
  std::vector<Signal> signals;
  std::vector<int> arrived;            // each signal once, as Python does while it runs no code
  std::vector<py::object> raised;      // by handlers, while a section began or ended
  std::vector<py::object> recognized;  // exceptions that handlers have raised in a section
  PyObject* module = nullptr;          // _signal: signal converts results to enumerations
  PyObject* getsignal = nullptr;
  PyObject* default_int_handler = nullptr;
  unsigned long id = 0;  // NOLINT: the type of Python's function

  MainThread() {
    module = import_module("_signal").release().ptr();
    getsignal = py::handle(module).attr("getsignal").cast<py::object>().release().ptr();
    default_int_handler =
        py::handle(module).attr("default_int_handler").cast<py::object>().release().ptr();
    id = import_module("threading")
             .attr("main_thread")()
             .attr("ident")
             .cast<unsigned long>();  // NOLINT
    for (const py::handle number : import_module("signal").attr("valid_signals")()) {
      Signal signal;
      signal.number = number.cast<int>();
      signal.python_number = PyLong_FromLong(signal.number);
      signals.push_back(signal);
    }
  }

  static MainThread*& pointer() {
    static MainThread* state = nullptr;
    return state;
  }

  static MainThread& instance() { return *pointer(); }

  Signal& signal(int number) {
    return *std::find_if(signals.begin(), signals.end(),
                         [number](const Signal& each) { return each.number == number; });
  }

  // Whether handlers run now, either outside of sections or in one that recognizes exceptions.
  bool may_deliver() const { return sections.empty() || sections.back() == Mode::kRecognized; }

  // Whether a Ctrl-C raises KeyboardInterrupt now.
  bool ctrl_c_raises() {
    return !sections.empty() && sections.back() == Mode::kCtrlCRaises &&
           signal(SIGINT).handler == default_int_handler;
  }

  bool has_deliveries() const { return !arrived.empty() || !raised.empty(); }
};

// Python's C functions may not throw.
PyObject* record_signal(PyObject* replaced, PyObject* args) {
  auto& state = MainThread::instance();
  const Signal& signal =
      state.signal(static_cast<int>(PyLong_AsLong(PyTuple_GET_ITEM(replaced, 0))));
  // Outside of sections, other code has found the substitute and set it again.
  const bool is_recorded = signal.is_replaced && !state.may_deliver() &&
                           !(signal.number == SIGINT && state.ctrl_c_raises());
  if (!is_recorded) {
    PyObject* const result = PyObject_Call(PyTuple_GET_ITEM(replaced, 1), args, nullptr);
    if (result == nullptr && !state.sections.empty() && state.may_deliver()) {
      py::object exception = take_error();
      state.recognized.push_back(exception);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
    }
    return result;
  }
  auto& arrived = state.arrived;
  if (std::find(arrived.begin(), arrived.end(), signal.number) == arrived.end()) {
    arrived.push_back(signal.number);
  }
  Py_RETURN_NONE;
}

py::object handler_of(const MainThread& state, const Signal& signal) {
  auto found =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(state.getsignal, signal.python_number));
  if (!found) PyErr_Clear();
  return found;
}

// Sets Python's handler of a signal, and leaves the operating system's action unchanged. Python
// first calls the handlers of signals that have arrived; exceptions of these are recorded. Returns
// false in a thread that may not set handlers.
bool set_handler(MainThread& state, const Signal& signal, PyObject* handler) {
  while (true) {
    struct sigaction action{};
    const bool is_known = sigaction(signal.number, nullptr, &action) == 0;
    const auto set = py::reinterpret_steal<py::object>(
        PyObject_CallMethod(state.module, "signal", "OO", signal.python_number, handler));
    if (set) {
      if (is_known) sigaction(signal.number, &action, nullptr);
      return true;
    }
    py::object exception = take_error();
    // Searches the text, since Python raises a plain ValueError for invalid arguments, too. The
    // main thread of embedded Python may be another than that of its module threading.
    const std::string message = py::str(exception);
    if (message.find("signal only works in main thread") != std::string::npos) return false;
    state.raised.push_back(std::move(exception));
  }
}

// Whether a section has to replace handlers: a Ctrl-C that raises is no reason.
bool has_handlers(const MainThread& state, Mode mode) {
  return std::any_of(state.signals.begin(), state.signals.end(), [&](const Signal& signal) {
    const py::object handler = handler_of(state, signal);
    if (!handler || PyCallable_Check(handler.ptr()) == 0) return false;
    return mode == Mode::kDeferred || handler.ptr() != state.default_int_handler;
  });
}

// Replaces all handlers. Returns false in a thread that may not set handlers.
bool replace_handlers(MainThread& state) {
  for (Signal& signal : state.signals) {
    const py::object handler = handler_of(state, signal);
    if (!handler || PyCallable_Check(handler.ptr()) == 0) continue;
    // Otherwise other code has found the substitute and set it again.
    const bool is_handler = handler.ptr() != signal.substitute;
    if (is_handler && handler.ptr() != signal.handler) {
      const py::tuple replaced = py::make_tuple(py::handle(signal.python_number), handler);
      Py_XDECREF(std::exchange(signal.substitute,
                               PyCFunction_New(&substitute_definition, replaced.ptr())));
      Py_XDECREF(std::exchange(signal.handler, py::object(handler).release().ptr()));
      signal.is_harmless = false;
    }
    signal.is_replaced = true;
    if (is_handler && !set_handler(state, signal, signal.substitute)) {
      signal.is_replaced = false;
      return false;
    }
  }
  return true;
}

void restore_handlers(MainThread& state) {
  // First, what has arrived so far is recorded. A handler that was set inside the section may
  // raise.
  while (PyErr_CheckSignals() != 0) state.raised.push_back(take_error());
  for (Signal& signal : state.signals) {
    if (!signal.is_replaced) continue;
    // Otherwise the section's code has set another handler.
    if (handler_of(state, signal).ptr() == signal.substitute) {
      set_handler(state, signal, signal.handler);
    }
    signal.is_replaced = false;
  }
  state.is_replaced = false;
}

// Takes a Ctrl-C that was recorded, or has raised while the section began, if it raises now.
std::optional<py::object> take_ctrl_c(MainThread& state) {
  if (state.sections.empty() || state.sections.back() != Mode::kCtrlCRaises) return std::nullopt;
  const auto is_interrupt = [](const py::object& exception) {
    return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_KeyboardInterrupt) != 0;
  };
  auto& raised = state.raised;
  if (const auto found = std::find_if(raised.begin(), raised.end(), is_interrupt);
      found != raised.end()) {
    py::object interrupt = std::move(*found);
    raised.erase(found);
    return interrupt;
  }
  const auto found = std::find(state.arrived.begin(), state.arrived.end(), SIGINT);
  if (!state.ctrl_c_raises() || found == state.arrived.end()) return std::nullopt;
  state.arrived.erase(found);
  return py::handle(PyExc_KeyboardInterrupt)();
}

// Calls the handler of a signal, in the frame of the current Python code.
void call_handler(const MainThread& state, const Signal& signal) {
  const py::object handler = handler_of(state, signal);
  // Otherwise the handler was removed after the signal arrived: Python ignores such signals, too.
  if (!handler || PyCallable_Check(handler.ptr()) == 0) return;
  auto* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  const auto result = py::reinterpret_steal<py::object>(PyObject_CallFunctionObjArgs(
      handler.ptr(), signal.python_number, frame == nullptr ? Py_None : frame, nullptr));
  if (!result) throw py::error_already_set();
}

// Called by Python at its next instruction in the main thread.
int deliver_pending(void* /*unused*/) {
  auto& state = MainThread::instance();
  try {
    if (const auto interrupt = take_ctrl_c(state)) raise(*interrupt);
    DeferredSignals::deliver();
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
    return -1;
  }
}

void deliver_later(MainThread& state) {
  const bool is_due = state.may_deliver() ? state.has_deliveries() : state.ctrl_c_raises();
  if (!is_due || Py_AddPendingCall(&deliver_pending, nullptr) == 0) return;
  // Python's queue is full.
  for (const int number : std::exchange(state.arrived, {})) std::raise(number);
}

// -- exceptions of other threads -----------------------------------------------------------------

thread_local int num_sections = 0;
// A second state of this thread, which is never run. PyThreadState_SetAsyncExc sets an exception in
// the latest state of a thread, so that exceptions are recorded here.
thread_local PyThreadState* decoy = nullptr;

void begin_deferring_exceptions() {
  if (num_sections++ > 0) return;
  PyThreadState* const thread = PyThreadState_Get();
  decoy = PyThreadState_New(PyThreadState_GetInterpreter(thread));
  if (decoy != nullptr) std::swap(decoy->async_exc, thread->async_exc);
}

void end_deferring_exceptions() {
  if (--num_sections > 0 || decoy == nullptr) return;
  PyThreadState* const state = std::exchange(decoy, nullptr);
  PyObject* const exception = std::exchange(state->async_exc, nullptr);
  PyThreadState_Clear(state);
  PyThreadState_Delete(state);
  if (exception == nullptr) return;
  PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), exception);
  Py_DECREF(exception);
}

// The forking thread is the main one of the child, in which Python has freed the other states.
void reset_after_fork() {
  decoy = nullptr;
  auto& state = MainThread::instance();
  const unsigned long id = PyThread_get_thread_ident();  // NOLINT: the type of Python's function
  if (std::exchange(state.id, id) == id) return;
  // The child lacks the thread whose sections these are. Its handlers: restore_after_fork().
  state.sections.clear();
  state.arrived.clear();
}

// The mode of a section inside those of `sections`.
Mode nested_mode(const std::vector<Mode>& sections, Mode mode) {
  if (sections.empty()) return mode == Mode::kInherited ? Mode::kCtrlCRaises : mode;
  const Mode outer = sections.back();
  if (mode == Mode::kRecognized) return outer;  // no handler runs where another section defers it
  if (mode != Mode::kInherited) return mode;
  return outer == Mode::kRecognized ? Mode::kCtrlCRaises : outer;
}

}  // namespace

void DeferredSignals::initialize() {
  if (MainThread::pointer() != nullptr) return;
  MainThread::pointer() = std::make_unique<MainThread>().release();
  pthread_atfork(nullptr, nullptr, reset_after_fork);
}

void DeferredSignals::restore_after_fork() {
  auto& state = MainThread::instance();
  if (state.sections.empty() && state.is_replaced) restore_handlers(state);
}

DeferredSignals::DeferredSignals(Mode mode) {
  auto& state = MainThread::instance();
  begin_deferring_exceptions();
  is_in_main_thread_ = PyThread_get_thread_ident() == state.id;
  if (!is_in_main_thread_) return;
  mode = nested_mode(state.sections, mode);
  state.sections.push_back(mode);
  // Inside another section, the search would find a Ctrl-C that raises, but nothing else.
  const bool is_searched = state.sections.size() > 1 && mode == Mode::kCtrlCRaises;
  if (!state.is_replaced && !is_searched && has_handlers(state, mode)) {
    state.is_replaced = replaces_ = true;
    if (!replace_handlers(state)) {
      state.sections.pop_back();
      state.is_replaced = replaces_ = is_in_main_thread_ = false;
      return;
    }
  }
}

DeferredSignals::~DeferredSignals() {
  const py::error_scope saved_error;
  if (is_in_main_thread_) {
    auto& state = MainThread::instance();
    state.sections.pop_back();
    if (std::exchange(replaces_, false)) restore_handlers(state);
    if (state.sections.empty()) state.recognized.clear();
    deliver_later(state);
  }
  end_deferring_exceptions();
}

void DeferredSignals::check_ctrl_c() const {
  if (!is_in_main_thread_) return;
  if (const auto interrupt = take_ctrl_c(MainThread::instance())) raise(*interrupt);
}

void DeferredSignals::deliver() {
  auto& state = MainThread::instance();
  if (PyThread_get_thread_ident() != state.id || !state.may_deliver()) return;
  std::vector<py::object> raised = std::exchange(state.raised, {});
  for (const int number : std::exchange(state.arrived, {})) {
    Signal& signal = state.signal(number);
    try {
      signal.is_harmless = false;
      call_handler(state, signal);
      signal.is_harmless = true;
    } catch (py::error_already_set& error) {
      error.restore();
      raised.push_back(take_error());
    }
  }
  if (raised.empty()) return;
  for (size_t i = 1; i < raised.size(); ++i) {
    PyException_SetContext(raised[i].ptr(), py::object(raised[i - 1]).release().ptr());
  }
  if (!state.sections.empty()) {
    state.recognized.insert(state.recognized.end(), raised.begin(), raised.end());
  }
  raise(raised.back());
}

bool DeferredSignals::is_pending() {
  if (decoy != nullptr && decoy->async_exc != nullptr) return true;
  auto& state = MainThread::instance();
  if (PyThread_get_thread_ident() != state.id) return false;
  return !state.raised.empty() ||
         std::any_of(state.arrived.begin(), state.arrived.end(),
                     [&](int number) { return !state.signal(number).is_harmless; });
}

bool DeferredSignals::is_from_outside(const py::handle& exception) {
  const auto& state = MainThread::instance();
  return PyThread_get_thread_ident() == state.id &&
         std::any_of(state.recognized.begin(), state.recognized.end(),
                     [&](const py::object& each) { return each.is(exception); });
}

void DeferredSignalsScope::enter() {
  section_ = std::make_unique<DeferredSignals>(mode_);
  try {
    section_->check_ctrl_c();
  } catch (const py::error_already_set&) {  // without a call of exit()
    section_.reset();
    throw;
  }
  const auto& state = MainThread::instance();
  const bool is_outermost = state.sections.size() == 1 && PyThread_get_thread_ident() == state.id;
  if (is_outermost && !state.raised.empty()) exit();
}

void DeferredSignalsScope::exit() {
  section_.reset();
  DeferredSignals::deliver();
}

}  // namespace paddle_ngraph
