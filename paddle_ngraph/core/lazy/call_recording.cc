#include "core/lazy/call_recording.h"

#include <algorithm>

#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// Describes an argument of a call. Returns false if a call with this argument cannot be deferred.
bool describe(Trace* trace, PyObject* given, bool may_be_tensor, TracedCall* call, Argument* found,
              int depth = 0) {
  if (depth > kMaxArgumentDepth) return false;
  if (is_tensor(given)) {
    if (!may_be_tensor) return false;
    found->kind = Argument::Kind::kValue;
    found->value = trace->index_of(given);
    if (found->value >= 0) return true;
    const auto meta = traced_meta(given);
    if (!meta) return false;
    call->metas.push_back(*meta);
    found->value = trace->note_new(given);
    return true;
  }
  if (is_sequence(given)) {
    found->kind = Argument::Kind::kSequence;
    found->type = sequence_type(given);
    if (found->type != &PyList_Type && found->type != &PyTuple_Type &&
        found->type != &PySlice_Type) {
      return false;
    }
    for (PyObject* member : sequence_items(given)) {
      Argument& item = found->items.emplace_back();
      if (!describe(trace, member, may_be_tensor, call, &item, depth + 1)) return false;
    }
    return true;
  }
  found->constant = is_foreign_number(given) ? to_python_number(given)
                                             : py::reinterpret_borrow<py::object>(given);
  found->is_any_of_type = is_cpu_place(given);
  return is_constant(found->constant.ptr());
}

// Whether the arguments have the values that a rule requires, by index.
bool have_values(const TracedCall& call,
                 const std::vector<std::pair<size_t, py::object>>& required) {
  return std::all_of(required.begin(), required.end(), [&](const auto& each) {
    const auto& [at, value] = each;
    return call.arguments.size() > at && call.arguments[at].kind == Argument::Kind::kConstant &&
           call.arguments[at].constant.equal(value);
  });
}

// Whether a number has no equal one in 32 bits.
bool is_double(const Argument& argument) {
  if (argument.kind != Argument::Kind::kConstant) return false;
  if (!PyFloat_CheckExact(argument.constant.ptr())) return false;
  const double number = PyFloat_AS_DOUBLE(argument.constant.ptr());
  return static_cast<double>(static_cast<float>(number)) != number;
}

// Whether a call satisfies the DeferralRule of its function.
bool may_defer(const Trace& trace, const TracedCall& call, bool has_gradient) {
  const DeferralRule& rule = call.function->rule;
  bool has_doubles = false;
  for (const Argument& argument : call.arguments) {
    if (argument.kind != Argument::Kind::kValue) continue;
    const auto dtype = tensor_of(trace.tensor_of_value(argument.value)).dtype();
    has_doubles = has_doubles || dtype == phi::DataType::FLOAT64;
    const bool is_float = dtype == phi::DataType::FLOAT32 || dtype == phi::DataType::FLOAT64;
    if (rule.requires_floats && !is_float) return false;
  }
  // A program would store the constant with 32 bits, and a double loses digits: such a call is not
  // deferred.
  if (has_doubles && std::any_of(call.arguments.begin(), call.arguments.end(), is_double)) {
    return false;
  }
  return have_values(call, rule.required_arguments) &&
         (!has_gradient || have_values(call, rule.required_with_gradient));
}

bool describe_result(Trace* trace, PyObject* result, TracedCall* call, Argument* found) {
  if (!is_tensor(result)) {
    if (result == Py_None) {
      found->constant = py::none();
      return true;
    }
    if (!PyList_CheckExact(result) && !PyTuple_CheckExact(result)) return false;
    found->kind = Argument::Kind::kSequence;
    found->type = Py_TYPE(result);
    for (PyObject* member : sequence_items(result)) {
      if (!describe_result(trace, member, call, &found->items.emplace_back())) return false;
    }
    return true;
  }
  if (trace->index_of(result) >= 0) return false;
  if (is_uninitialized(result)) {
    found->kind = Argument::Kind::kUninitialized;
    found->empty = empty_meta(result);
    found->stop_gradient = stops_gradient(result);
    // An empty result may be deferred only if no gradient, not even of zeros, would pass through
    // it, or if it is a reserve space.
    return !found->empty || found->stop_gradient || call->function->rule.has_reserve_space;
  }
  const auto meta = traced_meta(result);
  // A persistable result is a copy of a parameter, so its call is not deferred.
  if (!meta || get_flag(result, "persistable")) return false;
  found->kind = Argument::Kind::kValue;
  found->value = trace->note_new(result);
  const auto& memory = plain_tensor(result)->Holder();
  for (int value = 0; value < call->first_result; ++value) {
    PyObject* const tensor = trace->tensors()[value].ptr();
    const phi::DenseTensor* other = tensor == nullptr ? nullptr : plain_tensor(tensor);
    if (other != nullptr && other->Holder() == memory) call->views[found->value] = value;
  }
  call->metas.push_back(*meta);
  return true;
}

}  // namespace

std::optional<TracedCall> describe_call(Trace* trace, const InterceptedFunction& function,
                                        bool has_gradient, const PyObjects& given,
                                        PyObject* kwargs) {
  const DeferralRule& rule = function.rule;
  TracedCall call;
  call.function = &function;
  call.has_gradient = has_gradient;
  call.first_value = trace->num_values();
  trace->clear_new();
  for (PyObject* each : given) {
    const bool may_be_tensor = call.arguments.size() < rule.max_tensor_arguments;
    const bool is_unread = static_cast<int>(call.arguments.size()) == rule.unread_argument;
    Argument found;
    if (is_unread && is_uninitialized(each)) {
      found.kind = Argument::Kind::kUninitialized;
    } else if (!describe(trace, each, may_be_tensor, &call, &found)) {
      return std::nullopt;
    }
    call.arguments.push_back(std::move(found));
  }
  if (kwargs != nullptr) {
    const bool needs_some =
        !rule.required_arguments.empty() || !rule.required_with_gradient.empty();
    if (PyDict_GET_SIZE(kwargs) > 0 && needs_some) return std::nullopt;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
      call.keywords.push_back(py::reinterpret_borrow<py::str>(key));
    }
  }
  if (!may_defer(*trace, call, has_gradient)) return std::nullopt;
  return call;
}

bool describe_result(Trace* trace, PyObject* result, TracedCall* call) {
  call->first_result = trace->num_values();
  trace->clear_new();
  if (!describe_result(trace, result, call, &call->result)) return false;
  trace->add_new(/*are_results=*/true);
  return true;
}

}  // namespace paddle_ngraph
