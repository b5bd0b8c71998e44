// Python objects of dynamic-mode tensors.
#pragma once

#include <pybind11/pytypes.h>

#include "paddle/phi/api/include/tensor.h"

namespace paddle_ngraph {

// Whether an object is a tensor.
bool is_tensor(PyObject* object);

// Returns a new reference, or null with Python's error set.
PyObject* new_python_tensor(const paddle::Tensor& tensor);

// The beginning of the memory layout of a tensor object; python_module.cc checks it.
struct TensorObject {
  PyObject head;
  paddle::Tensor tensor;
};

// The tensor of a tensor object; unchecked.
inline paddle::Tensor& tensor_of(PyObject* object) {
  return reinterpret_cast<TensorObject*>(object)->tensor;
}

// Whether memory of a written tensor is also that of another written tensor, or of one of the
// others.
bool is_memory_shared(const pybind11::list& written, const pybind11::list& others);

}  // namespace paddle_ngraph
