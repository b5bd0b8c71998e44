#include "core/lazy/argument_snapshot.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/common/python_callbacks.h"
#include "core/lazy/capture.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"
#include "core/paddle/exposure.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// Whether a captured call gets a copy of a tensor argument: other code may write the memory of the
// tensor (has_escaped), such as a batch that DataLoader processes pass in shared memory. Each call
// with the tensor gets another copy. Large tensors, parameters, and tensors that require a gradient
// are not copied.
bool is_copied_on_capture(PyObject* object) {
  constexpr size_t kMaxCopiedBytes = size_t{64} << 20;
  if (!is_tensor(object) || is_lazy(object)) return false;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || !has_escaped(*tensor)) return false;
  return tensor->meta().is_contiguous() && num_bytes(*tensor) <= kMaxCopiedBytes &&
         !is_parameter(object) && stops_gradient(object);
}

// Appends the integers of a short tensor; returns false if they are unknown.
bool append_known_integers(const Trace& trace, PyObject* tensor, py::list* numbers) {
  constexpr int64_t kMaxKnownListLength = 64;
  const phi::DenseTensor* memory = trace.is_deferred(tensor) ? nullptr : plain_tensor(tensor);
  if (memory == nullptr || memory->dims().size() > 1 || memory->numel() > kMaxKnownListLength)
    return false;
  if (!memory->meta().is_contiguous()) return false;
  for (int64_t i = 0; i < memory->numel(); ++i) {
    if (memory->dtype() == phi::DataType::INT64) {
      numbers->append(memory->data<int64_t>()[i]);
    } else if (memory->dtype() == phi::DataType::INT32) {
      numbers->append(memory->data<int32_t>()[i]);
    } else {
      return false;
    }
  }
  return true;
}

// The elements of an argument that is a list of integers, such as a shape, and is passed as an
// integer tensor or as a list with such tensors. Nothing unless all elements are known.
std::optional<py::list> known_int_list(const Trace& trace, PyObject* argument) {
  py::list numbers;
  if (is_tensor(argument)) {
    if (append_known_integers(trace, argument, &numbers)) return numbers;
    return {};
  }
  if (!PyList_Check(argument) && !PyTuple_Check(argument)) return {};
  const PyObjects given = sequence_items(argument);
  if (std::none_of(given.begin(), given.end(), is_tensor)) return {};
  for (PyObject* member : given) {
    if (!is_tensor(member)) {
      numbers.append(py::handle(member));
    } else if (tensor_of(member).numel() != 1 || !append_known_integers(trace, member, &numbers)) {
      return {};
    }
  }
  return numbers;
}

PyObject* snapshot_argument(const Trace& trace, PyObject* argument,
                            const InterceptedFunction& function, bool is_number,
                            std::vector<py::object>* copies, int depth = 0) {
  const auto own = [copies](py::object made) {
    copies->push_back(std::move(made));
    return copies->back().ptr();
  };
  if (is_number) return own(to_python_number(argument));
  if (is_tensor(argument)) {
    if (trace.has_value(argument) || !is_copied_on_capture(argument)) return argument;
    const auto copy = tensor_of(argument).copy_to(phi::CPUPlace(), true);
    return own(py::reinterpret_steal<py::object>(new_python_tensor(copy)));
  }
  if (is_sequence(argument) && depth <= kMaxArgumentDepth) {
    const PyObjects given = sequence_items(argument);
    if (std::all_of(given.begin(), given.end(), is_plain_python)) return argument;
    PyObjects items;
    for (PyObject* member : given) {
      const bool is_item = is_numpy_number(member, true) || is_numpy_number(member, false);
      items.push_back(snapshot_argument(trace, member, function, is_item, copies, depth + 1));
    }
    if (items == given) return argument;
    if (is_slice(argument)) {
      return own(py::reinterpret_steal<py::object>(PySlice_New(items[0], items[1], items[2])));
    }
    py::list made;
    for (PyObject* item : items) made.append(py::handle(item));
    return own(PyTuple_Check(argument) ? py::object(py::tuple(made)) : py::object(made));
  }
  constexpr int kMaxDimensions = 8;
  if (function.rule.value_rule.kind == ValueRule::Kind::kSubscript ||
      function.rule.value_rule.kind == ValueRule::Kind::kSliceAssignment) {
    if (!is_integer_array(argument, 0, kMaxDimensions)) return argument;
    const NoCapture none;
    return own(import_module("paddle").attr("to_tensor")(py::handle(argument)));
  }
  // Operators other than arithmetic ones get a list in place of a 1-D array, as in Paddle, but no
  // scalar in place of a 0-D array.
  const bool is_list = !function.rule.is_arithmetic && is_integer_array(argument, 1, 1);
  return is_list ? own(py::handle(argument).attr("tolist")()) : argument;
}

bool is_integer_dtype(phi::DataType dtype) {
  return dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32 ||
         dtype == phi::DataType::BOOL || dtype == phi::DataType::UINT8 ||
         dtype == phi::DataType::INT8 || dtype == phi::DataType::INT16;
}

}  // namespace

void snapshot_arguments(const Trace& trace, const InterceptedFunction& function, PyObjects* given,
                        std::vector<py::object>* copies) {
  PyObject* const first = given->empty() ? nullptr : given->front();
  for (PyObject*& argument : *given) {
    if (is_plain_python(argument)) continue;
    const bool is_number = is_taken_as_python_number(argument, function, first);
    argument = snapshot_argument(trace, argument, function, is_number, copies);
  }
  for (const size_t at : function.rule.int_list_arguments) {
    if (at >= given->size()) continue;
    if (auto list = known_int_list(trace, (*given)[at])) {
      copies->push_back(std::move(*list));
      (*given)[at] = copies->back().ptr();
    }
  }
}

bool has_only_known_integers(const Trace& trace, PyObject* args, PyObject* self) {
  bool has_tensor = false, has_other = false;
  const auto look = [&](PyObject* object) {
    has_tensor = true;
    const auto& tensor = tensor_of(object);
    has_other = has_other || !tensor.defined() || !is_integer_dtype(tensor.dtype()) ||
                trace.is_deferred(object);
  };
  const bool is_seen = visit_tensors(args, look) && (self == nullptr || visit_tensors(self, look));
  return is_seen && has_tensor && !has_other;
}

}  // namespace paddle_ngraph
