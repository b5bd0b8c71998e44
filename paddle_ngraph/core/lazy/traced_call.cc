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
  return dtype == other.dtype && shape == other.shape && stop_gradient == other.stop_gradient &&
         is_contiguous == other.is_contiguous && is_parameter == other.is_parameter &&
         strides == other.strides;
}

std::optional<TracedTensorMeta> traced_meta(PyObject* object) {
  // A lazy tensor of another thread is not part of this thread's graph.
  if (is_lazy(object)) return std::nullopt;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || has_escaped(*tensor)) return std::nullopt;
  return TracedTensorMeta{tensor->dtype(),
                          tensor->dims(),
                          stops_gradient(object),
                          tensor->meta().is_contiguous(),
                          Py_TYPE(object)->tp_base != &PyBaseObject_Type,
                          tensor->strides()};
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

const Argument* TracedCall::argument(size_t at, const char* name) const {
  const size_t first_keyword = arguments.size() - keywords.size();
  if (at < first_keyword) return &arguments[at];
  for (size_t i = 0; i < keywords.size(); ++i) {
    if (keywords[i].equal(py::str(name))) return &arguments[first_keyword + i];
  }
  return nullptr;
}

namespace {

bool is_similar(const Argument& one, const Argument& other) {
  if (one.kind != other.kind) return false;
  switch (one.kind) {
    case Argument::Kind::kValue:
      return one.value == other.value;
    case Argument::Kind::kConstant:
      return equals_constant(one, other.constant.ptr());
    case Argument::Kind::kUninitialized:
      return one.empty == other.empty ||
             (one.empty != nullptr && other.empty != nullptr && *one.empty == *other.empty);
    case Argument::Kind::kSequence:
      break;
  }
  return one.type == other.type &&
         std::equal(one.items.begin(), one.items.end(), other.items.begin(), other.items.end(),
                    [](const auto& a, const auto& b) { return is_similar(a, b); });
}

bool is_similar(const TracedTensorMeta& one, const TracedTensorMeta& other) {
  return one.dtype == other.dtype && one.shape.size() == other.shape.size() &&
         one.stop_gradient == other.stop_gradient && one.is_contiguous == other.is_contiguous &&
         one.is_parameter == other.is_parameter && (!one.is_parameter || one.shape == other.shape);
}

}  // namespace

bool is_similar(const TracedCall& one, const TracedCall& other) {
  const auto are_similar = [](const auto& these, const auto& those) {
    return std::equal(these.begin(), these.end(), those.begin(), those.end(),
                      [](const auto& a, const auto& b) { return is_similar(a, b); });
  };
  return one.function == other.function && one.has_gradient == other.has_gradient &&
         one.first_value == other.first_value && one.first_result == other.first_result &&
         one.views == other.views && are_similar(one.arguments, other.arguments) &&
         std::equal(one.keywords.begin(), one.keywords.end(), other.keywords.begin(),
                    other.keywords.end(),
                    [](const py::str& a, const py::str& b) { return a.equal(b); }) &&
         is_similar(one.result, other.result) && are_similar(one.metas, other.metas);
}

}  // namespace paddle_ngraph
