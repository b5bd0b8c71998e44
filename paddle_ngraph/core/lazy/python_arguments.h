// The arguments of intercepted calls, as Python objects: tensors, numbers, and sequences of these.
#pragma once

#include <pybind11/pytypes.h>

#include <vector>

#include "core/paddle/call_interception.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

// The nesting of sequences up to which arguments are searched for tensors.
constexpr int kMaxArgumentDepth = 4;

// Whether attribute `name` of an object is True.
bool get_flag(PyObject* object, const char* name);

// Whether the name of an object's type contains `name`.
bool is_of_type(PyObject* object, const char* name);
// Whether an object is Paddle's CPUPlace, or a Place for the CPU.
bool is_cpu_place(PyObject* object);

// A fast check for most arguments and list items. True: neither a tensor nor a NumPy object.
bool is_plain_python(PyObject* object);
// Whether an object is a scalar of NumPy or Paddle that operators treat as a Python scalar. Other
// NumPy scalars are not: Python scalars are converted to the dtype of the tensor, NumPy's may be
// promoted differently.
bool is_foreign_number(PyObject* object);
// Whether an object is a NumPy scalar: int64 or int32 if `is_whole`, else float32 or float16
// (float64: is_foreign_number).
bool is_numpy_number(PyObject* object, bool is_whole);
// Whether an operator treats a NumPy scalar as the equal Python scalar. Arithmetic operators treat
// a scalar as a tensor of the dtype of the other tensor, of shape [1] in powers.
bool is_taken_as_python_number(PyObject* object, const InterceptedFunction& function,
                               PyObject* first_argument);
// The equal integer or float of Python. Throws Python's error.
pybind11::object to_python_number(PyObject* number);
// Whether an object is a NumPy array of integers, with a number of dimensions in this range.
bool is_integer_array(PyObject* object, int min_dimensions, int max_dimensions);

inline bool is_slice(PyObject* object) { return PySlice_Check(object); }
inline bool is_sequence(PyObject* object) {
  return PyList_Check(object) || PyTuple_Check(object) || is_slice(object);
}
// The type of a list, tuple or slice in a trace; list for Paddle's `Size`, a shape.
PyTypeObject* sequence_type(PyObject* items);
// The items of a list, tuple or slice; null for an absent bound of a slice.
PyObjects sequence_items(PyObject* items);

// The arguments of a call in order, including self of a method.
PyObjects arguments_of(const InterceptedFunction& function, PyObject* self, PyObject* args,
                       PyObject* kwargs);

// Calls `visit` with all tensors within an argument; returns false if the nesting is too deep.
template <typename Visit>
bool visit_tensors(PyObject* argument, const Visit& visit, int depth = 0) {
  if (depth > kMaxArgumentDepth) return false;
  if (is_sequence(argument)) {
    for (PyObject* member : sequence_items(argument)) {
      if (!visit_tensors(member, visit, depth + 1)) return false;
    }
  } else if (is_tensor(argument)) {
    visit(argument);
  }
  return true;
}

// Calls `find` for the tensors among the arguments; returns its first result that is not null.
template <typename Find>
auto find_any(const Find& find, PyObject* argument, int depth = 0) -> decltype(find(argument)) {
  if (argument == nullptr || depth > kMaxArgumentDepth) return nullptr;
  if (PyDict_Check(argument)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(argument, &at, &key, &value) != 0;) {
      if (const auto found = find_any(find, value, depth + 1)) return found;
    }
    return nullptr;
  }
  if (is_sequence(argument)) {
    for (PyObject* member : sequence_items(argument)) {
      if (const auto found = find_any(find, member, depth + 1)) return found;
    }
    return nullptr;
  }
  return find(argument);
}

}  // namespace paddle_ngraph
