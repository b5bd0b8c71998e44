#include "core/lazy/growing_lists.h"

#include <algorithm>

#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"
#include "core/lazy/traced_call.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// The list that a call joins; null if the call has other arguments than a list and an axis.
PyObject* list_of(PyObject* args, PyObject* kwargs) {
  const Py_ssize_t number = PyTuple_GET_SIZE(args);
  if (number < 1 || number > 2) return nullptr;
  if (number == 2 && !PyLong_CheckExact(PyTuple_GET_ITEM(args, 1))) return nullptr;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; kwargs != nullptr && PyDict_Next(kwargs, &at, &key, &value) != 0;) {
    if (value != Py_None) return nullptr;
  }
  PyObject* const list = PyTuple_GET_ITEM(args, 0);
  return PyList_CheckExact(list) || PyTuple_CheckExact(list) ? list : nullptr;
}

// The axis along which tensors of this rank are joined; -1: all their sizes are equal.
int64_t joined_axis(const InterceptedFunction& function, PyObject* args, int rank) {
  if (function.rule.list_rule != ListRule::kConcatenated) return -1;
  if (PyTuple_GET_SIZE(args) < 2) return 0;
  int overflow = 0;
  const int64_t axis = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(args, 1), &overflow);
  return overflow == 0 && axis < 0 ? axis + rank : axis;
}

bool is_joinable(const phi::DDim& shape, const phi::DDim& other, int64_t axis) {
  if (shape.size() != other.size()) return false;
  for (int at = 0; at < shape.size(); ++at) {
    if (shape[at] == 0 || (at != axis && shape[at] != other[at])) return false;
  }
  return true;
}

bool are_joinable(const PyObjects& members, const InterceptedFunction& function, PyObject* args) {
  if (!std::all_of(members.begin(), members.end(), is_tensor)) return false;
  if (!std::all_of(members.begin(), members.end(),
                   [](PyObject* each) { return tensor_of(each).defined(); })) {
    return false;
  }
  const auto& first = tensor_of(members.front());
  const int rank = first.dims().size();
  const int64_t axis = joined_axis(function, args, rank);
  if (function.rule.list_rule == ListRule::kConcatenated && (axis < 0 || axis >= rank)) {
    return false;
  }
  return std::all_of(members.begin(), members.end(), [&](PyObject* each) {
    const auto& tensor = tensor_of(each);
    return tensor.dtype() == first.dtype() && is_joinable(tensor.dims(), first.dims(), axis);
  });
}

bool is_known(const Trace& trace, PyObject* tensor) {
  return !is_lazy(tensor) && trace.index_of(tensor) < 0 && error_of(tensor) == nullptr &&
         plain_tensor(tensor) != nullptr && !is_parameter(tensor);
}

}  // namespace

std::optional<std::vector<ListPart>> parts_of_list(const Trace& trace,
                                                   const InterceptedFunction& function,
                                                   PyObject* args, PyObject* kwargs) {
  constexpr size_t kMinKnown = 2;
  if (function.rule.list_rule == ListRule::kNone) return {};
  PyObject* const list = list_of(args, kwargs);
  if (list == nullptr) return {};
  const PyObjects members = sequence_items(list);
  if (members.size() < kMinKnown || !are_joinable(members, function, args)) return {};
  std::vector<ListPart> parts;
  bool has_known = false;
  for (size_t first = 0; first < members.size();) {
    size_t end = first;
    while (end < members.size() && is_known(trace, members[end])) ++end;
    // Sums are rounded in the order of the list.
    const bool is_part = function.rule.list_rule != ListRule::kSummed || first == 0;
    if (end - first >= kMinKnown && is_part) {
      parts.push_back({PyObjects(members.begin() + first, members.begin() + end), true});
      has_known = true;
      first = end;
      continue;
    }
    if (end == first) ++end;
    if (parts.empty() || parts.back().is_known) parts.emplace_back();
    auto& rest = parts.back().members;
    rest.insert(rest.end(), members.begin() + first, members.begin() + end);
    first = end;
  }
  if (!has_known) return {};
  return parts;
}

bool has_other_length(const TraceNode& node, const InterceptedFunction& function, PyObject* args) {
  if (function.rule.list_rule == ListRule::kNone || PyTuple_GET_SIZE(args) == 0) return false;
  PyObject* const list = PyTuple_GET_ITEM(args, 0);
  if (!is_sequence(list)) return false;
  const size_t length = sequence_items(list).size();
  const auto differs = [&](const auto& child) {
    const TracedCall& call = child->call;
    return call.function == &function && !call.arguments.empty() &&
           call.arguments[0].kind == Argument::Kind::kSequence &&
           call.arguments[0].items.size() != length;
  };
  return std::any_of(node.children.begin(), node.children.end(), differs) ||
         std::any_of(node.open_children.begin(), node.open_children.end(), differs);
}

py::tuple with_members(PyObject* args, const std::vector<py::object>& members) {
  py::list list;
  for (const py::object& member : members) list.append(member);
  if (PyTuple_GET_SIZE(args) == 1) return py::make_tuple(list);
  return py::make_tuple(list, py::handle(PyTuple_GET_ITEM(args, 1)));
}

}  // namespace paddle_ngraph
