// Functions on the Python objects of dynamic-mode tensors.
#pragma once

#include <pybind11/pytypes.h>

#include "paddle/phi/api/include/tensor.h"
#include "paddle/utils/small_vector.h"

namespace paddle_ngraph {

// Borrowed references to the arguments of a call, or to the items of a sequence.
using PyObjects = paddle::small_vector<PyObject*, 8>;

// Whether a Python object is a tensor of dynamic mode.
bool is_tensor(PyObject* object);

// Whether a tensor is a parameter: an object of a class of Paddle's in Python.
bool is_parameter(PyObject* tensor);

// Whether attribute `stop_gradient` of a tensor is True.
bool stops_gradient(PyObject* tensor);

// Creates the Python object of a tensor. Returns a new reference, or null with Python's error set.
PyObject* new_python_tensor(const paddle::Tensor& tensor);

// The beginning of the memory layout of Paddle's tensor objects, which python_module.cc checks on
// import.
struct TensorObject {
  PyObject head;
  paddle::Tensor tensor;
};

// The C++ tensor of a Python tensor object; the type of the object is not checked.
inline paddle::Tensor& tensor_of(PyObject* object) {
  return reinterpret_cast<TensorObject*>(object)->tensor;
}

// Whether some tensor in `written` shares memory with another one, or with one in `others`. Numbers
// share none.
bool is_memory_shared(const pybind11::list& written, const pybind11::list& others);

}  // namespace paddle_ngraph
