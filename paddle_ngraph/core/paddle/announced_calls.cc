#include "core/paddle/announced_calls.h"

#include <array>
#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>

#include "paddle/phi/core/distributed/auto_parallel/dist_tensor.h"
#include "paddle/phi/core/selected_rows.h"
#include "paddle/utils/pybind.h"

#include "core/common/error.h"
#include "core/paddle/exposure.h"

namespace paddle_ngraph {

namespace {

// Paddle 3.3 has 3,500.
constexpr size_t kMostFunctions = 6144;

// A function in C that was replaced. Guarded by Python's lock, as what follows.
struct Original {
  PyCFunctionWithKeywords call = nullptr;
  Announced what = Announced::kArguments;
};

std::array<Original, kMostFunctions> originals;
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
  if (!paddle::pybind::PyCheckTensor(argument)) return false;
  const auto& tensor = reinterpret_cast<paddle::pybind::TensorObject*>(argument)->tensor;
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

void keep(PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto expose = [](const phi::DenseTensor& tensor) {
    give_address(tensor);
    return false;
  };
  for (PyObject* argument : {self, args, kwargs}) any_tensor(argument, expose);
}

// Calls a function. What it throws that Paddle cannot make a Python exception of would end the
// process: there is nothing above to catch it.
PyObject* call_original(const Original& original, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  try {
    return original.call(self, args, kwargs);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, concat("Paddle cannot run it: ", error.what()).c_str());
    return nullptr;
  }
}

PyObject* call_announced(const Original& original, PyObject* self, PyObject* args,
                         PyObject* kwargs) {
  if (original.what == Announced::kProgram && std::exchange(next_run_reads, false)) {
    return call_original(original, self, args, kwargs);
  }
  if (original.what == Announced::kKept) keep(self, args, kwargs);
  const auto may_write = [&] {
    return original.what == Announced::kAnything ? is_any_weight_watched()
                                                 : reaches_watched(self, args, kwargs);
  };
  std::optional<Writing> writing;
  if (may_write()) writing.emplace();
  PyObject* result = call_original(original, self, args, kwargs);
  // What has become a weight meanwhile was read while it was written.
  if (!writing && may_write()) weights_written();
  return result;
}

template <size_t kNumber>
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return call_announced(originals[kNumber], self, args, kwargs);
}

template <size_t... kNumbers>
constexpr std::array<PyCFunctionWithKeywords, sizeof...(kNumbers)> make_calls(
    std::index_sequence<kNumbers...>) {
  return {&call<kNumbers>...};
}

constexpr auto calls = make_calls(std::make_index_sequence<kMostFunctions>());

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

bool takes_nothing(const PyMethodDef& definition) { return definition.ml_flags == METH_NOARGS; }

}  // namespace

void announce_calls(const pybind11::object& function, Announced what) {
  PyMethodDef* definition = definition_of(function.ptr());
  if (definition != nullptr && takes_nothing(*definition)) return;
  if (definition == nullptr || (definition->ml_flags & ~METH_STATIC) != kTakesAll) {
    throw NgraphError(concat("calls of ", std::string(pybind11::repr(function)),
                             " cannot be announced: it is no function in C of the usual kind"));
  }
  const size_t number = numbers.size();
  if (number == kMostFunctions) throw NgraphError("too many functions to announce calls of");
  if (!numbers.emplace(definition, number).second) return;
  originals[number] = {
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(definition->ml_meth)),
      what};
  definition->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(calls[number]));
}

bool are_calls_announced(const pybind11::object& function) {
  const PyMethodDef* definition = definition_of(function.ptr());
  if (definition == nullptr) return false;
  return takes_nothing(*definition) || numbers.count(definition) > 0;
}

void set_next_run_reads(bool on) { next_run_reads = on; }

}  // namespace paddle_ngraph
