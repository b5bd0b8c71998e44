#include "core/paddle/announced_calls.h"

#include <array>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <pthread.h>

#include "paddle/phi/core/distributed/auto_parallel/dist_tensor.h"
#include "paddle/phi/core/selected_rows.h"

#include "core/common/error.h"
#include "core/common/python_casts.h"
#include "core/common/python_lock.h"
#include "core/paddle/capture.h"
#include "core/paddle/exposure.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

namespace {

// Paddle 3.3 has 5,700.
constexpr size_t kMostFunctions = 8192;

// Guarded by Python's lock, as what follows.
std::array<AnnouncedFunction, kMostFunctions>& all_functions() {
  static auto* const table = new std::array<AnnouncedFunction, kMostFunctions>();
  return *table;
}
std::array<AnnouncedFunction, kMostFunctions>& functions = all_functions();
std::unordered_map<const PyMethodDef*, size_t> numbers;

thread_local bool next_run_reads = false;

// Calls `visit` with every dense tensor within reach of an argument until one returns true, and
// returns whether one did, or whether lists are too deep to tell.
template <typename Visit>
bool any_tensor(PyObject* argument, const Visit& visit, int depth = 0) {
  constexpr int kDeepest = 16;
  if (argument == nullptr || argument == Py_None) return false;
  if (PyList_Check(argument) || PyTuple_Check(argument)) {
    if (depth == kDeepest) return true;
    PyObject** members = PySequence_Fast_ITEMS(argument);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
      if (any_tensor(members[i], visit, depth + 1)) return true;
    }
    return false;
  }
  if (PyDict_Check(argument)) {
    if (depth == kDeepest) return true;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(argument, &at, &key, &value) != 0;) {
      if (any_tensor(value, visit, depth + 1)) return true;
    }
    return false;
  }
  if (!is_tensor(argument)) return false;
  const auto& tensor = tensor_of(argument);
  const phi::TensorBase* base = tensor.impl().get();
  if (base == nullptr) return false;
  if (phi::DenseTensor::classof(base)) {
    return visit(*static_cast<const phi::DenseTensor*>(base));
  }
  if (phi::SelectedRows::classof(base)) {
    return visit(static_cast<const phi::SelectedRows*>(base)->value());
  }
  if (phi::distributed::DistTensor::classof(base)) {
    return visit(static_cast<const phi::distributed::DistTensor*>(base)->value());
  }
  return false;  // sparse tensors and the like have memory of their own
}

bool reaches_watched(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!is_any_weight_watched()) return false;
  for (PyObject* argument : {self, args, kwargs}) {
    if (any_tensor(argument, is_watched_weight)) return true;
  }
  return false;
}

// Calls a function, or its substitute. What it throws that Paddle cannot make a Python exception of
// would end the process: there is nothing above to catch it.
PyObject* call_original(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  try {
    if (function.substitute != nullptr) {
      if (PyObject* const result = function.substitute(args, kwargs)) return result;
    }
    PyObject* const result = function.call(self, args, kwargs);
    if (result == nullptr) restore_interruption();
    return result;
  } catch (pybind11::error_already_set& error) {  // Ctrl-C, say
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, concat("Paddle cannot run it: ", error.what()).c_str());
    return nullptr;
  }
}

// Does something for a capture, with Python's errors.
template <typename Result, typename Do>
Result with_errors(Result failed, const Do& act) {
  try {
    return act();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return failed;
}

bool settle(const std::string& name, PyObject* self, PyObject* args, PyObject* kwargs,
            bool may_write) {
  return with_errors(false, [&] {
    Capture* capture = Capture::here();
    if (capture != nullptr && !capture->settle(name)) return false;
    return settle_foreign(self, args, kwargs, may_write);
  });
}

// Whether a function writes tensors that it is given, as far as its name tells, or gives out what
// they can be written with.
bool is_writer(const AnnouncedFunction& function) {
  static const std::unordered_set<std::string> giving{"data_ptr", "get_map_tensor",
                                                      "get_selected_rows", "get_tensor", "value"};
  if (function.is_method && giving.count(function.name) > 0) return true;
  if (function.what == Announced::kNothing) return false;
  return function.is_method || (!function.name.empty() && function.name.back() == '_');
}

// How many calls go on in all threads, and in this one; and the thread that is alone, if any.
// Guarded by Python's lock.
size_t calls_of_all = 0;
thread_local size_t calls_here = 0;
std::thread::id alone;

void sleep_without_lock() {
  const WithoutPythonLock released;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// A forked process has only the thread that forked it.
void forget_other_threads() {
  calls_of_all = calls_here;
  if (alone != std::this_thread::get_id()) alone = std::thread::id();
  forget_captures_of_other_threads();
}

class Counted {
 public:
  Counted() {
    while (must_wait()) sleep_without_lock();
    ++calls_of_all;
    ++calls_here;
  }
  ~Counted() {
    --calls_of_all;
    --calls_here;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  // What is in a call already leaves only by calling on.
  static bool must_wait() {
    return calls_here == 0 && alone != std::thread::id() && alone != std::this_thread::get_id();
  }
};

// Whether a call sets a flag of ours: it changes how programs run, not what operators compute.
bool sets_own_flag(PyObject* args) {
  static const auto names = [] {
    std::unordered_set<std::string> found;
    for (const FlagInfo& flag : all_flags()) found.insert("FLAGS_" + flag.name);
    return found;
  }();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* argument = PyTuple_GET_ITEM(args, i);
    if (PyUnicode_Check(argument)) return names.count(pybind11::cast<std::string>(argument)) > 0;
  }
  return false;
}

PyObject* call_told(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                    PyObject* kwargs) {
  if (function.captured == Captured::kPassive) return call_now(function, self, args, kwargs);
  Capture* capture = Capture::here();
  const bool looks =
      function.captured == Captured::kOfNumbers || function.captured == Captured::kLooking;
  if (capture != nullptr && (function.captured == Captured::kSizes ||
                             (looks && capture->may_show({self, args, kwargs})))) {
    return with_errors<PyObject*>(
        nullptr, [&] { return capture->call_for_sizes(function, self, args, kwargs); });
  }
  if (function.captured == Captured::kAside && !does_any_wait(args, kwargs)) {
    return call_now(function, self, args, kwargs);
  }
  const bool is_of_known = looks || function.captured == Captured::kOfKnown;
  if (is_of_known && capture != nullptr &&
      capture->is_given_known({self, args, kwargs}, function.captured == Captured::kOfNumbers)) {
    const NoCapture none;
    PyObject* const result = call_now(function, self, args, kwargs);
    if (function.captured == Captured::kOfKnown) capture->note_new(result);
    return result;
  }
  if (capture != nullptr && function.captured == Captured::kOperator) {
    return with_errors<PyObject*>(nullptr,
                                  [&] { return capture->call(function, self, args, kwargs); });
  }
  if (!settle(function.name, self, args, kwargs, is_writer(function))) return nullptr;
  // From now on the user sees each tensor that autograd keeps, so nothing may wait.
  if (function.captured == Captured::kShowing) set_kept_tensors_are_seen(true);
  if (function.captured == Captured::kHiding) set_kept_tensors_are_seen(false);
  if (capture != nullptr && function.captured == Captured::kSwitching) {
    capture->set_dynamic(PyTuple_GET_SIZE(args) == 1 && PyTuple_GET_ITEM(args, 0) != Py_None);
  }
  const NoCapture none;
  if (function.captured == Captured::kSetting && !sets_own_flag(args)) note_setting();
  return call_now(function, self, args, kwargs);
}

}  // namespace

}  // namespace paddle_ngraph

extern "C" __attribute__((visibility("hidden"), used)) PyObject* ngraph_call_told(PyObject* self,
                                                                                  PyObject* args,
                                                                                  PyObject* kwargs,
                                                                                  size_t number) {
  using namespace paddle_ngraph;
  return call_told(functions[number], self, args, kwargs);
}

static_assert(paddle_ngraph::kMostFunctions == 8192, "as many as below");

// For each number a function that Python can call, which hands on the number: 16 bytes each. As
// instances of a template they would take the compiler longer than all the rest of this file.
extern "C" __attribute__((visibility("hidden"))) const char ngraph_calls[];
asm(R"(
  .pushsection .text
  .p2align 4
  .hidden ngraph_calls
ngraph_calls:
  .set number, 0
  .rept 8192
  .p2align 4
  movl $number, %ecx
  jmp ngraph_call_told
  .set number, number + 1
  .endr
  .popsection
)");

namespace paddle_ngraph {

namespace {

PyCFunction call_of(size_t number) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<uintptr_t>(ngraph_calls) + 16 * number);
}

// The table entry of a function or method in C; null for other things.
PyMethodDef* definition_of(PyObject* function) {
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (PyCFunction_Check(function)) return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (PyObject_TypeCheck(function, &PyMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  }
  return nullptr;
}

constexpr int kTakesAll = METH_VARARGS | METH_KEYWORDS;

// An attribute in C that was replaced. It lives as long as its type.
struct ToldAttribute {
  getter get;
  setter set;
  void* closure;
  std::string name;
  bool get_is_passive;
  bool set_is_passive;
};

PyObject* get_told(PyObject* self, void* closure) {
  const auto& told = *static_cast<ToldAttribute*>(closure);
  if (!told.get_is_passive && !settle(told.name, self, nullptr, nullptr, false)) return nullptr;
  return told.get(self, told.closure);
}

// The one that captures know more of, guarded by Python's lock.
constexpr const char* kStopGradient = "stop_gradient";
const ToldAttribute* stop_gradient = nullptr;

PyObject* stop_gradient_of(PyObject* self, PyObject*, PyObject*) {
  if (stop_gradient->set(self, Py_True, stop_gradient->closure) != 0) return nullptr;
  Py_RETURN_NONE;
}

// `self.stop_gradient = True`
int switch_gradient_off(Capture* capture, PyObject* self) {
  static auto* const function = [] {
    auto* made = new AnnouncedFunction();
    made->call = stop_gradient_of;
    made->captured = Captured::kOperator;
    made->is_method = true;
    made->name = kStopGradient;
    made->rule.most_tensors = 1;
    made->rule.changes = Changes::kStopGradient;
    return made;
  }();
  static auto* const nothing = new pybind11::tuple();
  return with_errors(-1, [&] {
    const auto result = pybind11::reinterpret_steal<pybind11::object>(
        capture->call(*function, self, nothing->ptr(), nullptr));
    return result ? 0 : -1;
  });
}

int set_told(PyObject* self, PyObject* value, void* closure) {
  const auto& told = *static_cast<ToldAttribute*>(closure);
  if (told.set_is_passive) return told.set(self, value, told.closure);
  if (told.get_is_passive) {
    const auto now = pybind11::reinterpret_steal<pybind11::object>(told.get(self, told.closure));
    if (!now) return -1;
    if (now.ptr() == value) return 0;  // it is so already
  }
  Capture* capture = Capture::here();
  if (&told == stop_gradient && value == Py_True && capture != nullptr) {
    return switch_gradient_off(capture, self);
  }
  if (!settle(told.name, self, nullptr, nullptr, true)) return -1;
  return told.set(self, value, told.closure);
}

bool takes_nothing(const PyMethodDef& definition) { return definition.ml_flags == METH_NOARGS; }

}  // namespace

void announce_calls(const pybind11::object& function, Announced what) {
  PyMethodDef* definition = definition_of(function.ptr());
  if (definition != nullptr && takes_nothing(*definition)) return;
  if (definition == nullptr || (definition->ml_flags & ~(METH_STATIC | METH_CLASS)) != kTakesAll) {
    throw NgraphError(concat("calls of ", std::string(pybind11::repr(function)),
                             " cannot be announced: it is no function in C of the usual kind"));
  }
  const size_t number = numbers.size();
  if (number == kMostFunctions) throw NgraphError("too many functions to announce calls of");
  if (!numbers.emplace(definition, number).second) return;
  functions[number].call =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(definition->ml_meth));
  functions[number].what = what;
  definition->ml_meth = call_of(number);
}

void substitute_calls(const pybind11::object& function, Substitute substitute) {
  const auto found = numbers.find(definition_of(function.ptr()));
  if (found == numbers.end()) throw NgraphError("calls of what is substituted are not announced");
  functions[found->second].substitute = substitute;
}

bool are_calls_announced(const pybind11::object& function) {
  const PyMethodDef* definition = definition_of(function.ptr());
  if (definition == nullptr) return false;
  return takes_nothing(*definition) || numbers.count(definition) > 0;
}

Alone::Alone() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  const auto waits_for = [&](const auto& is_over) {
    while (!is_over()) {
      if (std::chrono::steady_clock::now() > end) return false;
      sleep_without_lock();
    }
    return true;
  };
  if (!waits_for([] { return alone == std::thread::id(); })) return;
  alone = std::this_thread::get_id();  // nobody enters any more
  is_alone_ = waits_for([] { return calls_of_all == calls_here; });
  if (!is_alone_) alone = std::thread::id();
}

Alone::~Alone() {
  if (is_alone_) alone = std::thread::id();
}

PyObject* call_now(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                   PyObject* kwargs) {
  std::optional<Counted> counted;
  if (function.captured != Captured::kAside) counted.emplace();
  if (function.what == Announced::kNothing) return call_original(function, self, args, kwargs);
  if (function.what == Announced::kProgram && std::exchange(next_run_reads, false)) {
    return call_original(function, self, args, kwargs);
  }
  const auto may_write = [&] {
    return function.what == Announced::kAnything ? is_any_weight_watched()
                                                 : reaches_watched(self, args, kwargs);
  };
  std::optional<Writing> writing;
  if (may_write()) writing.emplace();
  PyObject* result = call_original(function, self, args, kwargs);
  // What has become a weight meanwhile was read while it was written.
  if (!writing && may_write()) weights_written();
  return result;
}

void tell_captures(const pybind11::object& function, const std::string& name, Captured captured,
                   const WaitRule& rule) {
  // Fails only if no memory is left.
  static const int registered = pthread_atfork(nullptr, nullptr, forget_other_threads);
  static_cast<void>(registered);
  PyMethodDef* definition = definition_of(function.ptr());
  if (definition == nullptr || takes_nothing(*definition)) return;
  // A few without keyword arguments create tensors of descriptions.
  const bool is_usual = (definition->ml_flags & METH_KEYWORDS) != 0;
  if (captured == Captured::kAside && !is_usual) return;
  if (numbers.count(definition) == 0) announce_calls(function, Announced::kNothing);
  AnnouncedFunction& told = functions[numbers.at(definition)];
  told.name = name;
  told.captured = captured;
  told.rule = rule;
  told.is_method = PyObject_TypeCheck(function.ptr(), &PyMethodDescr_Type) != 0;
}

void tell_captures_of_attribute(const pybind11::object& attribute, const std::string& name,
                                bool get_is_passive, bool set_is_passive) {
  if (!PyObject_TypeCheck(attribute.ptr(), &PyGetSetDescr_Type)) {
    throw NgraphError(concat(name, " is no attribute in C"));
  }
  PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr())->d_getset;
  auto* told = new ToldAttribute{definition->get, definition->set, definition->closure, name,
                                 get_is_passive,  set_is_passive};
  definition->closure = told;
  definition->get = get_told;
  if (definition->set != nullptr) definition->set = set_told;
  if (name == kStopGradient) stop_gradient = told;
}

void set_stop_gradient(PyObject* tensor, bool on) {
  if (stop_gradient->set(tensor, on ? Py_True : Py_False, stop_gradient->closure) != 0) {
    throw pybind11::error_already_set();
  }
}

void set_next_run_reads(bool on) { next_run_reads = on; }

}  // namespace paddle_ngraph
