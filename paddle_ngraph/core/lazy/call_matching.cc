#include "core/lazy/call_matching.h"

#include "core/lazy/call_hash.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/open_traces.h"
#include "core/lazy/python_arguments.h"
#include "core/lazy/result_shapes.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// Whether the keyword arguments of a call have these names, in this order.
bool has_keywords(const std::vector<py::str>& keywords, PyObject* kwargs) {
  const size_t number = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
  if (number != keywords.size()) return false;
  if (number == 0) return true;
  PyObject *key, *value;
  size_t next = 0;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
    if (!keywords[next++].equal(py::handle(key))) return false;
  }
  return true;
}

bool matches_value(Trace* trace, const Argument& expected, PyObject* given,
                   const TracedCall& call) {
  const int known_value = trace->index_of(given);
  if (known_value >= 0) return known_value == expected.value;
  const int next = trace->num_values() + static_cast<int>(trace->new_tensors().size());
  if (expected.value != next || next >= call.first_result) return false;
  const TracedTensorMeta& known = call.meta_of(next);
  // Shapes are compared first, since there may be recorded calls of many sizes.
  if (!has_sizes(tensor_of(given).dims(), known.shape)) return false;
  const auto meta = traced_meta(given);
  if (!meta || !meta->is_similar(known)) return false;
  const bool is_same_layout = known.has_open_sizes() ? meta->merged_axes == known.merged_axes
                                                     : meta->strides == known.strides;
  if (!is_same_layout) return false;
  trace->note_new(given);
  return true;
}

bool matches_number(Trace* trace, const Argument& expected, PyObject* given, NumberKind rule) {
  const py::object number = is_foreign_number(given) ? to_python_number(given)
                                                     : py::reinterpret_borrow<py::object>(given);
  if (!may_differ(rule, expected.is_negative, number.ptr())) return false;
  trace->note_new_number(number);
  return true;
}

// `argument`: the index of the call's argument that `expected` is a part of.
bool matches(Trace* trace, const Argument& expected, PyObject* given, const TracedCall& call,
             size_t argument) {
  switch (expected.kind) {
    case Argument::Kind::kValue:
      return is_tensor(given) && matches_value(trace, expected, given, call);
    case Argument::Kind::kConstant:
      return equals_constant(expected, given);
    case Argument::Kind::kNumber:
      return matches_number(trace, expected, given, call.number_rules[argument]);
    case Argument::Kind::kUninitialized:
      return is_uninitialized(given);
    case Argument::Kind::kSequence:
      break;
  }
  if (!is_sequence(given) || sequence_type(given) != expected.type) return false;
  const PyObjects items = sequence_items(given);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!matches(trace, expected.items[i], items[i], call, argument)) return false;
  }
  return true;
}

bool match_result(Trace* trace, const Argument& expected, PyObject* result,
                  const TracedCall& call) {
  if (expected.kind == Argument::Kind::kConstant) return expected.constant.ptr() == result;
  if (expected.kind == Argument::Kind::kUninitialized) return is_uninitialized(result);
  if (expected.kind == Argument::Kind::kValue) {
    if (!is_tensor(result) || trace->index_of(result) >= 0) return false;
    const auto meta = traced_meta(result);
    if (!meta || !has_meta(*trace, *meta, expected.value - call.first_result, call)) return false;
    trace->add_result(result);
    return true;
  }
  if (Py_TYPE(result) != expected.type) return false;
  const PyObjects items = sequence_items(result);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!match_result(trace, expected.items[i], items[i], call)) return false;
  }
  return true;
}

}  // namespace

// Whether the results of a call have the sizes that are noted, which a trace with open sizes does
// not imply.
static bool has_result_sizes(Trace* trace, const TraceNode& next, const PyObjects& given) {
  const TracedCall& call = next.call;
  if (!next.is_open || call.has_static_results) return true;
  if (!call.places || !find_result_shapes(call, given, &trace->next_shapes)) return false;
  for (int i = 0; i < call.num_results(); ++i) {
    const phi::DDim& sizes = call.meta_of(call.first_result + i).shape;
    if (!has_sizes(trace->next_shapes[i], sizes)) return false;
  }
  // Paddle raises where an operator would write a larger result than its first argument.
  return call.function->rule.mutation == Mutation::kNone ||
         trace->next_shapes[0] == tensor_of(given[0]).dims();
}

TraceNode* find_next(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                     const PyObjects& given, PyObject* kwargs) {
  const auto is_same = [&](const TraceNode& next) {
    const TracedCall& call = next.call;
    if (call.function != &function || call.has_gradient != has_gradient || next.is_retired ||
        call.arguments.size() != given.size() || !has_keywords(call.keywords, kwargs)) {
      return false;
    }
    trace->clear_new();
    for (size_t i = 0; i < given.size(); ++i) {
      if (!matches(trace, call.arguments[i], given[i], call, i)) return false;
    }
    return has_result_sizes(trace, next, given);
  };
  const auto find_among = [&](const TraceNode& node) -> TraceNode* {
    if (node.children_by_hash.empty()) {
      for (const auto& next : node.children) {
        if (is_same(*next)) return next.get();
      }
    } else {
      const size_t hash = hash_of(trace, function, has_gradient, given);
      const auto [first, last] = node.children_by_hash.equal_range(hash);
      for (auto next = first; next != last; ++next) {
        if (is_same(*next->second)) return next->second;
      }
    }
    for (const auto& next : node.open_children) {
      if (is_same(*next)) return next.get();
    }
    return nullptr;
  };
  TraceNode& last = trace->node();
  if (TraceNode* const found = find_among(last)) return found;
  if (!last.opened.empty()) {
    for (TraceNode* const node : with_opened(&last)) {
      TraceNode* const found = node == &last ? nullptr : find_among(*node);
      if (found != nullptr) return found;
    }
  }
  trace->clear_new();
  return nullptr;
}

bool has_meta(const Trace& trace, const TracedTensorMeta& meta, int result,
              const TracedCall& call) {
  const TracedTensorMeta& known = call.meta_of(call.first_result + result);
  if (trace.next_shapes.empty()) return meta == known;
  // The strides noted in a trace with open sizes are those of other sizes.
  return meta.dtype == known.dtype && meta.stop_gradient == known.stop_gradient &&
         meta.shape == trace.next_shapes[result];
}

bool match_result(Trace* trace, const TracedCall& call, PyObject* result) {
  return match_result(trace, call.result, result, call);
}

}  // namespace paddle_ngraph
