#include "core/lazy/python_arguments.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace py = pybind11;

namespace paddle_ngraph {

bool get_flag(PyObject* object, const char* name) {
  const py::object flag = py::reinterpret_borrow<py::object>(object).attr(name);
  return flag.ptr() == Py_True;
}

bool is_of_type(PyObject* object, const char* name) {
  return std::string(Py_TYPE(object)->tp_name).find(name) != std::string::npos;
}

bool is_cpu_place(PyObject* object) {
  if (is_of_type(object, "CPUPlace")) return true;
  return is_of_type(object, ".Place") &&
         py::reinterpret_borrow<py::object>(object).attr("is_cpu_place")().ptr() == Py_True;
}

bool is_plain_python(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyBool_Check(object) || PyUnicode_CheckExact(object);
}

bool is_foreign_number(PyObject* object) {
  constexpr std::array<const char*, 2> kNames{"numpy.float64", "TensorSize"};
  return std::any_of(kNames.begin(), kNames.end(), [object](const char* name) {
    return std::strcmp(Py_TYPE(object)->tp_name, name) == 0;
  });
}

bool is_numpy_number(PyObject* object, bool is_whole) {
  const char* name = Py_TYPE(object)->tp_name;
  if (std::strncmp(name, "numpy.", 6) != 0) return false;
  const std::string kind = name + 6;
  return is_whole ? kind == "int64" || kind == "int32" : kind == "float32" || kind == "float16";
}

bool is_taken_as_python_number(PyObject* object, const InterceptedFunction& function,
                               PyObject* first_argument) {
  const bool is_whole = is_numpy_number(object, true);
  if (!is_whole && !is_numpy_number(object, false)) return false;
  if (!function.rule.is_arithmetic) return true;
  if (!is_tensor(first_argument)) return false;
  const auto dtype = tensor_of(first_argument).dtype();
  if (dtype == phi::DataType::FLOAT32 || dtype == phi::DataType::FLOAT64) {
    return is_whole || function.name != "__pow__";
  }
  return is_whole && (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32);
}

py::object to_python_number(PyObject* number) {
  auto plain = py::reinterpret_steal<py::object>(PyIndex_Check(number) ? PyNumber_Long(number)
                                                                       : PyNumber_Float(number));
  if (!plain) throw py::error_already_set();
  return plain;
}

bool is_integer_array(PyObject* object, int min_dimensions, int max_dimensions) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const bool is_known = array.dtype().kind() == 'i' && array.itemsize() >= 4;
  return is_known && array.ndim() >= min_dimensions && array.ndim() <= max_dimensions;
}

PyTypeObject* sequence_type(PyObject* items) {
  return is_of_type(items, "libpaddle.Size") ? &PyList_Type : Py_TYPE(items);
}

PyObjects sequence_items(PyObject* items) {
  if (is_slice(items)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(items);
    return {slice->start, slice->stop, slice->step};
  }
  PyObject** first = PySequence_Fast_ITEMS(items);
  return PyObjects(first, first + PySequence_Fast_GET_SIZE(items));
}

PyObjects arguments_of(const InterceptedFunction& function, PyObject* self, PyObject* args,
                       PyObject* kwargs) {
  PyObjects arguments;
  if (function.is_method) arguments.push_back(self);
  PyObject** const first = PySequence_Fast_ITEMS(args);
  arguments.append(first, first + PyTuple_GET_SIZE(args));
  if (kwargs == nullptr) return arguments;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) arguments.push_back(value);
  return arguments;
}

}  // namespace paddle_ngraph
