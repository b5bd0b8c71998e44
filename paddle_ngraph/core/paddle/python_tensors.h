// Tensors of dynamic mode, as Python holds them.
#pragma once

#include "paddle/utils/pybind.h"

namespace paddle_ngraph {

// The tensor of an object that is one.
inline paddle::Tensor& tensor_of(PyObject* object) {
  return reinterpret_cast<paddle::pybind::TensorObject*>(object)->tensor;
}

}  // namespace paddle_ngraph
