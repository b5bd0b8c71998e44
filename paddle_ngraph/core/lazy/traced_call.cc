#include "core/lazy/traced_call.h"

#include <algorithm>
#include <cstring>

#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"
#include "core/paddle/exposure.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

bool TracedTensorMeta::operator==(const TracedTensorMeta& other) const {
  return is_similar(other) && shape == other.shape && strides == other.strides;
}

bool TracedTensorMeta::has_open_sizes() const {
  for (int axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] < 0) return true;
  }
  return false;
}

bool TracedTensorMeta::is_similar(const TracedTensorMeta& other) const {
  return dtype == other.dtype && stop_gradient == other.stop_gradient &&
         is_contiguous == other.is_contiguous && is_parameter == other.is_parameter;
}

bool has_sizes(const phi::DDim& shape, const phi::DDim& sizes) {
  if (shape.size() != sizes.size()) return false;
  for (int axis = 0; axis < shape.size(); ++axis) {
    if (sizes[axis] >= 0 && sizes[axis] != shape[axis]) return false;
  }
  return true;
}

static uint32_t merged_axes_of(const phi::DenseTensor& tensor) {
  const phi::DDim &shape = tensor.dims(), &strides = tensor.strides();
  uint32_t merged = 0;
  for (int axis = 0; axis + 1 < shape.size(); ++axis) {
    if (strides[axis] == shape[axis + 1] * strides[axis + 1]) merged |= 1U << axis;
  }
  return merged;
}

std::optional<TracedTensorMeta> traced_meta(PyObject* object) {
  // A lazy tensor of another thread is not part of this thread's graph.
  if (is_lazy(object)) return std::nullopt;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || has_escaped(*tensor)) return std::nullopt;
  return TracedTensorMeta{tensor->dtype(),        tensor->dims(),
                          stops_gradient(object), tensor->meta().is_contiguous(),
                          is_parameter(object),   tensor->strides(),
                          merged_axes_of(*tensor)};
}

bool is_constant(PyObject* object) {
  if (object == Py_None || object == Py_Ellipsis || PyBool_Check(object)) return true;
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) ||
         is_of_type(object, "DataType") || is_cpu_place(object);
}

bool equals_constant(const Argument& constant, PyObject* given) {
  PyObject* expected = constant.constant.ptr();
  if (expected == given) return true;
  if (Py_TYPE(expected) != Py_TYPE(given)) {
    return is_foreign_number(given) && equals_constant(constant, to_python_number(given).ptr());
  }
  if (constant.is_any_of_type) return is_cpu_place(given);
  if (PyFloat_CheckExact(expected)) {
    const double one = PyFloat_AS_DOUBLE(expected), other = PyFloat_AS_DOUBLE(given);
    return std::memcmp(&one, &other, sizeof(one)) == 0;
  }
  const int is_equal = PyObject_RichCompareBool(expected, given, Py_EQ);
  if (is_equal < 0) throw py::error_already_set();
  return is_equal == 1;
}

std::optional<std::string> TracedCall::keyword_of(size_t argument) const {
  const size_t first_keyword = arguments.size() - keywords.size();
  if (argument < first_keyword) return {};
  return std::string(keywords[argument - first_keyword]);
}

const Argument* TracedCall::argument(size_t at, const char* name) const {
  const size_t first_keyword = arguments.size() - keywords.size();
  if (at < first_keyword) return &arguments[at];
  for (size_t i = 0; i < keywords.size(); ++i) {
    if (keywords[i].equal(py::str(name))) return &arguments[first_keyword + i];
  }
  return nullptr;
}

}  // namespace paddle_ngraph
