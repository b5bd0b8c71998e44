#include "core/paddle/call_interception.h"

#include <array>
#include <chrono>
#include <cstring>
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
#include "core/common/gil_release.h"
#include "core/common/python_casts.h"
#include "core/lazy/capture.h"
#include "core/lazy/lazy_tensors.h"
#include "core/paddle/call_stacks.h"
#include "core/paddle/dynamic_modes.h"
#include "core/paddle/exposure.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

namespace {

// Intercepted functions of Paddle 3.3: 5,700.
constexpr size_t kMaxInterceptedFunctions = 8192;

// The state of the interception, guarded by the GIL: the table of functions, the index of each in
// it, and the definitions of the originals of replaceable functions, by those of the functions.
std::array<InterceptedFunction, kMaxInterceptedFunctions>& all_functions() {
  static auto* const table = new std::array<InterceptedFunction, kMaxInterceptedFunctions>();
  return *table;
}
std::array<InterceptedFunction, kMaxInterceptedFunctions>& functions = all_functions();
size_t num_functions = 0;
std::unordered_map<const PyMethodDef*, size_t> function_indices;
std::unordered_map<PyMethodDef*, PyMethodDef*> original_definitions;
const InterceptedFunction* concatenating_function = nullptr;
std::unordered_set<const PyMethodDef*> replaced_definitions;

thread_local bool next_program_is_read_only = false;

// Calls `visit` with every dense tensor within reach of an argument until one returns true. Returns
// true if one did, or if lists are nested too deeply to decide.
template <typename Visit>
bool any_tensor(PyObject* argument, const Visit& visit, int depth = 0) {
  constexpr int kMaxDepth = 16;
  if (argument == nullptr || argument == Py_None) return false;
  if (PyList_Check(argument) || PyTuple_Check(argument)) {
    if (depth == kMaxDepth) return true;
    PyObject** members = PySequence_Fast_ITEMS(argument);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(argument); ++i) {
      if (any_tensor(members[i], visit, depth + 1)) return true;
    }
    return false;
  }
  if (PyDict_Check(argument)) {
    if (depth == kMaxDepth) return true;
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
  return false;  // no watched weight: sparse tensors and the like have memory of their own
}

bool reaches_watched(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (!is_any_weight_watched()) return false;
  for (PyObject* argument : {self, args, kwargs}) {
    if (any_tensor(argument, is_watched_weight)) return true;
  }
  return false;
}

// Calls a function, or its substitute. C++ exceptions are converted into Python's: an exception
// that passes through Python's C code, which has no handler, would terminate the process.
PyObject* call_original(const InterceptedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  try {
    if (function.substitute != nullptr) {
      if (PyObject* const result = function.substitute(args, kwargs)) return result;
    }
    PyObject* const result = function.call(self, args, kwargs);
    if (result == nullptr) restore_interruption();
    return result;
  } catch (pybind11::error_already_set& error) {  // an interruption, for example by Ctrl-C
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, concat("Paddle cannot run it: ", error.what()).c_str());
    return nullptr;
  }
}

// Runs an action for a capture, and converts exceptions into Python's errors.
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

bool flush_for_call(const std::string& name, PyObject* self, PyObject* args, PyObject* kwargs,
                    bool may_write) {
  return with_errors(false, [&] {
    Capture* capture = Capture::current();
    if (capture != nullptr && !capture->flush(name)) return false;
    return flush_other_threads(self, args, kwargs, may_write);
  });
}

// Whether a function writes its arguments, judging by its name, or returns write access to them.
bool is_writer(const InterceptedFunction& function) {
  static const std::unordered_set<std::string> exposing_methods{
      "data_ptr", "get_map_tensor", "get_selected_rows", "get_tensor", "value"};
  if (function.is_method && exposing_methods.count(function.name) > 0) return true;
  if (function.write_effect == WriteEffect::kNone) return false;
  return function.is_method || (!function.name.empty() && function.name.back() == '_');
}

// Number of active calls in all threads, and in this one; and the thread with exclusive access, if
// any. Guarded by the GIL.
size_t active_calls = 0;
thread_local size_t active_calls_in_thread = 0;
std::thread::id exclusive_thread;

void sleep_without_gil() {
  const GilRelease released;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// Resets the state of calls in a forked process, where only the thread that called fork() exists.
void reset_after_fork() {
  active_calls = active_calls_in_thread;
  if (exclusive_thread != std::this_thread::get_id()) exclusive_thread = std::thread::id();
  reset_captures_after_fork();
}

class ActiveCall {
 public:
  ActiveCall() {
    while (is_blocked()) sleep_without_gil();
    ++active_calls;
    ++active_calls_in_thread;
  }
  ~ActiveCall() {
    --active_calls;
    --active_calls_in_thread;
  }
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

 private:
  // A thread that is in a call already can leave it only by making further calls.
  static bool is_blocked() {
    return active_calls_in_thread == 0 && exclusive_thread != std::thread::id() &&
           exclusive_thread != std::this_thread::get_id();
  }
};

// Whether a call sets a flag of the plugin: such flags change how programs run, not the results of
// operators.
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

PyObject* call_replacement(const InterceptedFunction& function, PyObject* self, PyObject* args,
                           PyObject* kwargs) {
  if (!function.is_method) return PyObject_Call(function.replacement, args, kwargs);
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  PyObject* const with_self = PyTuple_New(count + 1);
  if (with_self == nullptr) return nullptr;
  Py_INCREF(self);
  PyTuple_SET_ITEM(with_self, 0, self);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const argument = PyTuple_GET_ITEM(args, i);
    Py_INCREF(argument);
    PyTuple_SET_ITEM(with_self, i + 1, argument);
  }
  PyObject* const result = PyObject_Call(function.replacement, with_self, kwargs);
  Py_DECREF(with_self);
  return result;
}

// A call that registers or removes a hook, where nothing is deferred in this thread.
PyObject* hook_without_capture(const InterceptedFunction& function, PyObject* self, PyObject* args,
                               PyObject* kwargs) {
  if (!flush_for_call(function.name, self, args, kwargs, false)) return nullptr;
  return with_errors<PyObject*>(
      nullptr, [&] { return call_now(function, self, with_hook_ids(args).ptr(), kwargs); });
}

PyObject* dispatch_call(const InterceptedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  if (function.replacement != nullptr) return call_replacement(function, self, args, kwargs);
  if (function.effect == CallEffect::kMetadataOnly) return call_now(function, self, args, kwargs);
  Capture* capture = Capture::current();
  if (function.effect == CallEffect::kTransparent && capture != nullptr && !has_gradients()) {
    return call_now(function, self, args, kwargs);
  }
  const bool accesses_data = function.effect == CallEffect::kDataAccess ||
                             function.effect == CallEffect::kReadOnlyDataAccess;
  if (capture != nullptr && (function.effect == CallEffect::kShapeQuery ||
                             (accesses_data && capture->may_expose_data({self, args, kwargs})))) {
    return with_errors<PyObject*>(
        nullptr, [&] { return capture->call_shape_query(function, self, args, kwargs); });
  }
  if (function.effect == CallEffect::kGradientHook) {
    if (capture == nullptr) return hook_without_capture(function, self, args, kwargs);
    return with_errors<PyObject*>(
        nullptr, [&] { return capture->call_hooking(function, self, args, kwargs); });
  }
  if (function.effect == CallEffect::kBreakIfLazyArgument && !is_any_lazy(args, kwargs)) {
    return call_now(function, self, args, kwargs);
  }
  const bool is_eager_on_known = accesses_data || function.effect == CallEffect::kEagerOperator;
  if (is_eager_on_known && capture != nullptr &&
      capture->has_only_materialized_tensors({self, args, kwargs},
                                             function.effect == CallEffect::kDataAccess)) {
    const NoCapture none;
    note_native_call(function.name);
    PyObject* const result = call_now(function, self, args, kwargs);
    if (function.effect == CallEffect::kEagerOperator) capture->note_eager_result(result);
    return result;
  }
  if (capture != nullptr && function.effect == CallEffect::kDeferrable) {
    return with_errors<PyObject*>(nullptr,
                                  [&] { return capture->call(function, self, args, kwargs); });
  }
  if (!flush_for_call(function.name, self, args, kwargs, is_writer(function))) return nullptr;
  // From now on autograd passes each saved tensor to the user, so no operator may be deferred.
  if (function.effect == CallEffect::kSavedTensorHooksOn) set_saved_tensor_hooks_active(true);
  if (function.effect == CallEffect::kSavedTensorHooksOff) set_saved_tensor_hooks_active(false);
  if (capture != nullptr && function.effect == CallEffect::kTracerSwitch) {
    capture->set_dynamic(PyTuple_GET_SIZE(args) == 1 && PyTuple_GET_ITEM(args, 0) != Py_None);
  }
  const NoCapture none;
  if (function.effect == CallEffect::kFlagChange && !sets_own_flag(args)) bump_settings_version();
  note_native_call(function.name);
  return call_now(function, self, args, kwargs);
}

}  // namespace

}  // namespace paddle_ngraph

extern "C" __attribute__((visibility("hidden"), used)) PyObject* ngraph_dispatch_call(
    PyObject* self, PyObject* args, PyObject* kwargs, size_t number) {
  using namespace paddle_ngraph;
  return dispatch_call(functions[number], self, args, kwargs);
}

static_assert(paddle_ngraph::kMaxInterceptedFunctions == 8192, "as many as below");

// One Python-callable function per index, which passes on its index: 16 bytes each. As template
// instances they would take the compiler longer than the rest of this file.
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
  jmp ngraph_dispatch_call
  .set number, number + 1
  .endr
  .popsection
)");

namespace paddle_ngraph {

namespace {

PyCFunction stub_of(size_t number) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<uintptr_t>(ngraph_calls) + 16 * number);
}

// The definition of a C function or method; null for other objects.
PyMethodDef* definition_in(PyObject* function) {
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  if (PyCFunction_Check(function)) return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
  if (PyObject_TypeCheck(function, &PyMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(function)->d_method;
  }
  return nullptr;
}

// The definition of a C function or method, of the original where it is replaced; null for other
// objects.
PyMethodDef* method_definition(PyObject* function) {
  PyMethodDef* const definition = definition_in(function);
  return replaced_definitions.count(definition) > 0 ? original_definitions.at(definition)
                                                    : definition;
}

constexpr int kVarargsKeywords = METH_VARARGS | METH_KEYWORDS;

bool takes_keywords(const PyMethodDef& definition) {
  return (definition.ml_flags & ~(METH_STATIC | METH_CLASS)) == kVarargsKeywords;
}

// Adds an entry to the table of functions; returns its index.
size_t add_function() {
  if (num_functions == kMaxInterceptedFunctions)
    throw NgraphError("too many functions to intercept");
  return num_functions++;
}

// The definition of a function that may be replaced. Throws NgraphError for other functions.
PyMethodDef* replaceable_definition(const pybind11::object& function) {
  if (!is_replaceable(function)) {
    throw NgraphError(
        concat(std::string(pybind11::repr(function)),
               " cannot be replaced in place: it is no C function of the usual kind"));
  }
  return definition_in(function.ptr());
}

// A patched C attribute. Lives as long as its type.
struct InterceptedAttribute {
  getter get;
  setter set;
  void* closure;
  std::string name;
  bool get_is_passive;
  bool set_is_passive;
};

PyObject* get_intercepted(PyObject* self, void* closure) {
  const auto& intercepted = *static_cast<InterceptedAttribute*>(closure);
  if (!intercepted.get_is_passive &&
      !flush_for_call(intercepted.name, self, nullptr, nullptr, false))
    return nullptr;
  return intercepted.get(self, intercepted.closure);
}

// `stop_gradient`, whose assignment captures may defer; guarded by the GIL.
constexpr const char* kStopGradient = "stop_gradient";
const InterceptedAttribute* stop_gradient = nullptr;

PyObject* stop_gradient_of(PyObject* self, PyObject*, PyObject*) {
  if (stop_gradient->set(self, Py_True, stop_gradient->closure) != 0) return nullptr;
  Py_RETURN_NONE;
}

// Sets `self.stop_gradient = True` under capture.
int switch_gradient_off(Capture* capture, PyObject* self) {
  static auto* const function = [] {
    auto* made = new InterceptedFunction();
    made->call = stop_gradient_of;
    made->effect = CallEffect::kDeferrable;
    made->is_method = true;
    made->name = kStopGradient;
    made->rule.max_tensor_arguments = 1;
    made->rule.mutation = Mutation::kStopGradient;
    made->rule.shape_rule = {ShapeRule::Kind::kSame, {"x"}, {}, {}, {}};
    return made;
  }();
  static auto* const nothing = new pybind11::tuple();
  return with_errors(-1, [&] {
    const auto result = pybind11::reinterpret_steal<pybind11::object>(
        capture->call(*function, self, nothing->ptr(), nullptr));
    return result ? 0 : -1;
  });
}

int set_intercepted(PyObject* self, PyObject* value, void* closure) {
  const auto& intercepted = *static_cast<InterceptedAttribute*>(closure);
  if (intercepted.set_is_passive) return intercepted.set(self, value, intercepted.closure);
  if (intercepted.get_is_passive) {
    const auto now =
        pybind11::reinterpret_steal<pybind11::object>(intercepted.get(self, intercepted.closure));
    if (!now) return -1;
    if (now.ptr() == value) return 0;  // nothing to set: the property has this value already
  }
  Capture* capture = Capture::current();
  if (&intercepted == stop_gradient && value == Py_True && capture != nullptr) {
    return switch_gradient_off(capture, self);
  }
  if (!flush_for_call(intercepted.name, self, nullptr, nullptr, true)) return -1;
  return intercepted.set(self, value, intercepted.closure);
}

bool has_no_arguments(const PyMethodDef& definition) { return definition.ml_flags == METH_NOARGS; }

}  // namespace

void intercept_calls(const pybind11::object& function, WriteEffect write_effect) {
  PyMethodDef* definition = method_definition(function.ptr());
  if (definition != nullptr && has_no_arguments(*definition)) return;
  if (definition == nullptr || !takes_keywords(*definition)) {
    throw NgraphError(concat("calls of ", std::string(pybind11::repr(function)),
                             " cannot be announced: it is no function in C of the usual kind"));
  }
  if (function_indices.count(definition) > 0) return;
  const size_t number = add_function();
  function_indices.emplace(definition, number);
  functions[number].call =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(definition->ml_meth));
  functions[number].write_effect = write_effect;
  definition->ml_meth = stub_of(number);
}

bool is_replaceable(const pybind11::object& function) {
  PyObject* object = function.ptr();
  const PyMethodDef* definition = definition_in(object);
  if (definition == nullptr || !takes_keywords(*definition)) return false;
  if (PyObject_TypeCheck(object, &PyMethodDescr_Type)) return true;
  if (PyInstanceMethod_Check(object)) object = PyInstanceMethod_GET_FUNCTION(object);
  const auto* found = reinterpret_cast<const PyCFunctionObject*>(object);
  // Other objects share the definition of their function with objects of other types, as bound
  // methods and `__new__` do. With a vectorcall function, Python would not read the definition.
  const bool is_own = found->m_self != nullptr &&
                      (PyCapsule_CheckExact(found->m_self) || PyModule_Check(found->m_self));
  return is_own && found->vectorcall == nullptr;
}

pybind11::object original_of(const pybind11::object& function) {
  PyMethodDef* const definition = replaceable_definition(function);
  PyObject* object = function.ptr();
  if (PyInstanceMethod_Check(object)) object = PyInstanceMethod_GET_FUNCTION(object);
  PyMethodDef*& original = original_definitions[definition];
  if (original == nullptr) {
    original = new PyMethodDef(*definition);  // never freed, as the references below
    // pybind11 frees the text when it adds an overload.
    if (definition->ml_doc != nullptr) original->ml_doc = strdup(definition->ml_doc);
    Py_INCREF(object);
  }
  if (PyObject_TypeCheck(object, &PyMethodDescr_Type)) {
    object = PyDescr_NewMethod(PyDescr_TYPE(object), original);
  } else {
    const auto* found = reinterpret_cast<const PyCFunctionObject*>(object);
    object = PyCFunction_NewEx(original, found->m_self, found->m_module);
  }
  if (object == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(object);
}

bool is_method_referenced(const pybind11::type& owner, const std::string& name) {
  PyObject* const method =
      PyDict_GetItemString(reinterpret_cast<PyTypeObject*>(owner.ptr())->tp_dict, name.c_str());
  if (method == nullptr || !PyInstanceMethod_Check(method)) return false;
  PyObject* const function = PyInstanceMethod_GET_FUNCTION(method);
  // The class refers to the method, and the method and original_of to the function. A bound method
  // refers to the function, an unbound one is the method of the class.
  const size_t known = 1 + original_definitions.count(definition_in(function));
  return Py_REFCNT(method) > 1 || static_cast<size_t>(Py_REFCNT(function)) > known;
}

void replace_calls(const pybind11::object& function, const pybind11::object& replacement) {
  PyMethodDef* const definition = replaceable_definition(function);
  if (replaced_definitions.count(definition) > 0) {
    throw NgraphError(concat(std::string(pybind11::repr(function)), " is replaced already"));
  }
  original_of(function);  // which defines the original
  PyMethodDef* const original = original_definitions.at(definition);
  const size_t number = add_function();
  functions[number].is_method = PyObject_TypeCheck(function.ptr(), &PyMethodDescr_Type) != 0;
  functions[number].replacement = replacement.inc_ref().ptr();
  // An earlier interception applies to the original from now on.
  original->ml_meth = definition->ml_meth;
  if (const auto found = function_indices.find(definition); found != function_indices.end()) {
    function_indices.emplace(original, found->second);
    function_indices.erase(definition);
  }
  replaced_definitions.insert(definition);
  definition->ml_meth = stub_of(number);
}

void substitute_calls(const pybind11::object& function, Substitute substitute) {
  const auto found = function_indices.find(method_definition(function.ptr()));
  if (found == function_indices.end())
    throw NgraphError("calls of what is substituted are not announced");
  functions[found->second].substitute = substitute;
}

bool are_calls_intercepted(const pybind11::object& function) {
  const PyMethodDef* definition = method_definition(function.ptr());
  if (definition == nullptr) return false;
  return has_no_arguments(*definition) || function_indices.count(definition) > 0;
}

ExclusiveSection::ExclusiveSection() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  const auto wait_until = [&](const auto& is_over) {
    while (!is_over()) {
      if (std::chrono::steady_clock::now() > end) return false;
      sleep_without_gil();
    }
    return true;
  };
  if (!wait_until([] { return exclusive_thread == std::thread::id(); })) return;
  // From here on, other threads wait before they enter an intercepted function; the next line waits
  // for the calls in progress.
  exclusive_thread = std::this_thread::get_id();
  is_exclusive_ = wait_until([] { return active_calls == active_calls_in_thread; });
  if (!is_exclusive_) exclusive_thread = std::thread::id();
}

ExclusiveSection::~ExclusiveSection() {
  if (is_exclusive_) exclusive_thread = std::thread::id();
}

PyObject* call_now(const InterceptedFunction& function, PyObject* self, PyObject* args,
                   PyObject* kwargs) {
  std::optional<ActiveCall> active_call;
  if (function.effect != CallEffect::kBreakIfLazyArgument) active_call.emplace();
  if (function.write_effect == WriteEffect::kNone)
    return call_original(function, self, args, kwargs);
  if (function.write_effect == WriteEffect::kProgram &&
      std::exchange(next_program_is_read_only, false)) {
    return call_original(function, self, args, kwargs);
  }
  const auto may_write = [&] {
    return function.write_effect == WriteEffect::kAnyTensor ? is_any_weight_watched()
                                                            : reaches_watched(self, args, kwargs);
  };
  std::optional<WeightWriteScope> write_scope;
  if (may_write()) write_scope.emplace();
  PyObject* result = call_original(function, self, args, kwargs);
  // An argument whose memory became a weight during the call may have been read as a weight while
  // the call was writing it.
  if (!write_scope && may_write()) mark_weights_written();
  return result;
}

void set_call_effect(const pybind11::object& function, const std::string& name, CallEffect effect,
                     const DeferralRule& rule) {
  // pthread_atfork() fails only if no memory is left; the state is then not reset in a forked
  // process.
  static const int registered = pthread_atfork(nullptr, nullptr, reset_after_fork);
  static_cast<void>(registered);
  PyMethodDef* definition = method_definition(function.ptr());
  if (definition == nullptr || has_no_arguments(*definition)) return;
  // A few functions without keyword arguments create tensors from descriptions.
  const bool is_usual = (definition->ml_flags & METH_KEYWORDS) != 0;
  if (effect == CallEffect::kBreakIfLazyArgument && !is_usual) return;
  if (function_indices.count(definition) == 0) intercept_calls(function, WriteEffect::kNone);
  InterceptedFunction& intercepted = functions[function_indices.at(definition)];
  intercepted.name = name;
  intercepted.effect = effect;
  intercepted.rule = rule;
  intercepted.is_method = PyObject_TypeCheck(function.ptr(), &PyMethodDescr_Type) != 0;
  if (rule.list_rule == ListRule::kConcatenated) concatenating_function = &intercepted;
}

const InterceptedFunction& concatenation() { return *concatenating_function; }

void intercept_attribute(const pybind11::object& attribute, const std::string& name,
                         bool get_is_passive, bool set_is_passive) {
  if (!PyObject_TypeCheck(attribute.ptr(), &PyGetSetDescr_Type)) {
    throw NgraphError(concat(name, " is no attribute in C"));
  }
  PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(attribute.ptr())->d_getset;
  auto* intercepted = new InterceptedAttribute{
      definition->get, definition->set, definition->closure, name, get_is_passive, set_is_passive};
  definition->closure = intercepted;
  definition->get = get_intercepted;
  if (definition->set != nullptr) definition->set = set_intercepted;
  if (name == kStopGradient) stop_gradient = intercepted;
}

void set_stop_gradient(PyObject* tensor, bool on) {
  if (stop_gradient->set(tensor, on ? Py_True : Py_False, stop_gradient->closure) != 0) {
    throw pybind11::error_already_set();
  }
}

void set_next_program_read_only(bool on) { next_program_is_read_only = on; }

}  // namespace paddle_ngraph
