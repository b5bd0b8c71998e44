#include "core/paddle/python_tensors.h"

#include <set>

#include "paddle/phi/core/dense_tensor.h"

#include "core/paddle/tensors.h"

// Declares two functions of paddle/utils/pybind.h, a header that would include all of pybind11.
namespace paddle::pybind {
bool PyCheckTensor(PyObject* object);
PyObject* ToPyObject(const Tensor& value, bool return_py_none_if_not_initialize);
}  // namespace paddle::pybind

namespace paddle_ngraph {

bool is_tensor(PyObject* object) { return paddle::pybind::PyCheckTensor(object); }

bool is_parameter(PyObject* tensor) { return Py_TYPE(tensor)->tp_base != &PyBaseObject_Type; }

bool stops_gradient(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
  const auto flag = pybind11::reinterpret_steal<pybind11::object>(PyObject_GetAttr(tensor, name));
  if (!flag) throw pybind11::error_already_set();
  return flag.ptr() == Py_True;
}

namespace {

// The allocation that contains a tensor, possibly with other tensors; null if the tensor has no
// memory, and for a number.
const phi::Allocation* allocation_of(const pybind11::handle& object) {
  if (!is_tensor(object.ptr())) return nullptr;
  const auto& tensor = tensor_of(object.ptr());
  if (!tensor.is_dense_tensor() || !tensor.initialized()) return nullptr;
  return dense(tensor)->Holder().get();
}

}  // namespace

PyObject* new_python_tensor(const paddle::Tensor& tensor) {
  return paddle::pybind::ToPyObject(tensor, false);
}

bool is_memory_shared(const pybind11::list& written, const pybind11::list& others) {
  std::set<const phi::Allocation*> known;
  for (const auto& object : written) {
    const auto* allocation = allocation_of(object);
    if (allocation != nullptr && !known.insert(allocation).second) return true;
  }
  for (const auto& object : others) {
    if (known.count(allocation_of(object)) > 0) return true;
  }
  return false;
}

}  // namespace paddle_ngraph
