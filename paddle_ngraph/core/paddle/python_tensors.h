// Tensors of dynamic mode, as Python holds them.
#pragma once

#include <pybind11/pytypes.h>

#include "paddle/phi/api/include/tensor.h"

namespace paddle_ngraph {

// Whether an object is a tensor.
bool is_tensor(PyObject* object);

// A new object, or null and Python's error.
PyObject* new_python_tensor(const paddle::Tensor& tensor);

// How the object of a tensor begins; python_module.cc checks it.
struct TensorObject {
  PyObject head;
  paddle::Tensor tensor;
};

// The tensor of an object that is one.
inline paddle::Tensor& tensor_of(PyObject* object) {
  return reinterpret_cast<TensorObject*>(object)->tensor;
}

// Whether tensors of Python that are written share memory with each other, or with one of others.
bool is_memory_shared(const pybind11::list& written, const pybind11::list& others);

}  // namespace paddle_ngraph
