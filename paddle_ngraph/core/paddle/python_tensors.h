// Tensors of dynamic mode, as Python holds them.
#pragma once

#include "paddle/utils/pybind.h"

namespace paddle_ngraph {

// The tensor of an object that is one.
inline paddle::Tensor& tensor_of(PyObject* object) {
  return reinterpret_cast<paddle::pybind::TensorObject*>(object)->tensor;
}

// Whether tensors of Python that are written share memory with each other, or with one of others.
bool is_memory_shared(const pybind11::list& written, const pybind11::list& others);

}  // namespace paddle_ngraph
