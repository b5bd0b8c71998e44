#include "core/lazy/lazy_tensors.h"

#include "core/common/error.h"
#include "core/lazy/capture.h"
#include "core/lazy/python_arguments.h"

namespace py = pybind11;

namespace paddle_ngraph {

std::unordered_map<PyObject*, Capture*>& lazy_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, Capture*>();
  return *tensors;
}

std::unordered_map<const phi::Allocation*, std::vector<Capture*>>& readers() {
  static auto* const captures =
      new std::unordered_map<const phi::Allocation*, std::vector<Capture*>>();
  return *captures;
}

std::unordered_map<PyObject*, std::string>& failed_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, std::string>();
  return *tensors;
}

const std::string* error_of(PyObject* tensor) {
  const auto found = failed_tensors().find(tensor);
  return found == failed_tensors().end() ? nullptr : &found->second;
}

const phi::DenseTensor* plain_tensor(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto* tensor = static_cast<const phi::DenseTensor*>(base.get());
  if (tensor->Holder() == nullptr || tensor->numel() == 0) return nullptr;
  return tensor->place().GetType() == phi::AllocationType::CPU ? tensor : nullptr;
}

bool is_uninitialized(PyObject* object, bool allow_lazy) {
  if (!is_tensor(object) || (is_lazy(object) && !allow_lazy)) return false;
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !base->initialized()) return true;
  if (!phi::DenseTensor::classof(base.get()) || base->numel() == 0) return false;
  return static_cast<const phi::DenseTensor&>(*base).Holder()->ptr() == nullptr;
}

std::shared_ptr<const phi::DenseTensorMeta> empty_meta(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto& tensor = static_cast<const phi::DenseTensor&>(*base);
  if (tensor.dims().size() <= 0 || tensor.numel() != 0) return nullptr;
  return std::make_shared<phi::DenseTensorMeta>(tensor.dtype(), tensor.dims());
}

py::object make_tensor(const phi::DenseTensorMeta& meta, bool stop_gradient) {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>(
      std::make_shared<phi::Allocation>(nullptr, 0, phi::CPUPlace()), meta));
  auto tensor = py::reinterpret_steal<py::object>(new_python_tensor(made));
  if (!stop_gradient) {
    static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
    const NoCapture none;
    if (PyObject_SetAttr(tensor.ptr(), name, Py_False) != 0) throw py::error_already_set();
  }
  return tensor;
}

py::object make_uninitialized_tensor() {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>());
  return py::reinterpret_steal<py::object>(new_python_tensor(made));
}

void materialize(paddle::Tensor* lazy, const paddle::Tensor& result, const std::string& name) {
  const std::string known = lazy->name();
  *lazy = result;
  lazy->set_name(known.empty() ? name : known);
}

namespace {

Capture* capture_of_lazy(PyObject* argument) {
  const auto found = lazy_tensors().find(argument);
  return found == lazy_tensors().end() ? nullptr : found->second;
}

// The first capture whose deferred calls read the memory of a tensor; null if there is none. Looked
// up by memory, so that views of a tensor are found, too.
Capture* reader_of(PyObject* argument) {
  if (readers().empty() || !is_tensor(argument)) return nullptr;
  const phi::DenseTensor* tensor = plain_tensor(argument);
  if (tensor == nullptr) return nullptr;
  const auto found = readers().find(tensor->Holder().get());
  return found == readers().end() ? nullptr : found->second.front();
}

}  // namespace

Capture* owner_of(const std::array<PyObject*, 3>& arguments, bool may_write) {
  for (PyObject* argument : arguments) {
    if (Capture* found = find_any(capture_of_lazy, argument)) return found;
    if (!may_write) continue;
    if (Capture* found = find_any(reader_of, argument)) return found;
  }
  return nullptr;
}

bool is_any_lazy(PyObject* args, PyObject* kwargs) {
  for (PyObject* argument : {args, kwargs}) {
    if (!failed_tensors().empty() && find_any(error_of, argument) != nullptr) return true;
    if (!lazy_tensors().empty() && find_any(capture_of_lazy, argument) != nullptr) return true;
  }
  return false;
}

bool flush_other_threads(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write) {
  const std::array<PyObject*, 3> arguments{self, args, kwargs};
  if (!failed_tensors().empty()) {
    for (PyObject* argument : arguments) {
      if (const std::string* error = find_any(error_of, argument)) {
        PyErr_SetString(PyExc_RuntimeError,
                        concat("the tensor was not computed: ", *error).c_str());
        return false;
      }
    }
  }
  if (lazy_tensors().empty() && readers().empty()) return true;
  // The capture that defers the arguments is looked up in each iteration: another thread may have
  // computed and ended it meanwhile.
  while (Capture* owner = owner_of(arguments, may_write)) {
    if (!owner->flush_for_other_thread()) return false;
  }
  return true;
}

}  // namespace paddle_ngraph
