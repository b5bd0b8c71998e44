#include "core/lazy/open_traces.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "core/lazy/python_arguments.h"
#include "core/lazy/result_shapes.h"
#include "core/lazy/varying_numbers.h"
#include "core/paddle/call_interception.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// A trace, with the sizes and numbers of one of its calls.
struct SampledTrace {
  std::vector<const TraceNode*> nodes;
  const TraceSample& sample;
};

// The number that an argument has in a sample; null if it is no number.
PyObject* number_in(const TraceSample& sample, const Argument& argument) {
  if (argument.kind == Argument::Kind::kNumber) return sample.numbers[argument.number].ptr();
  if (argument.kind != Argument::Kind::kConstant) return nullptr;
  PyObject* const constant = argument.constant.ptr();
  return PyLong_CheckExact(constant) || PyFloat_CheckExact(constant) ? constant : nullptr;
}

bool is_below_zero(PyObject* number) { return is_integer(number) && PyLong_AsLongLong(number) < 0; }

bool has_number(const Argument& argument) {
  return argument.kind == Argument::Kind::kNumber ||
         std::any_of(argument.items.begin(), argument.items.end(), has_number);
}

// Whether sizes differ in an argument of a call.
bool has_open_sizes(const TracedCall& call, size_t argument) {
  return is_size(call.number_rules[argument]) && has_number(call.arguments[argument]);
}

// Joins two traces call by call. The results of the functions are nothing where the traces differ
// in more than sizes and numbers.
class Joining {
 public:
  Joining(const SampledTrace& one, const SampledTrace& other, Openness openness)
      : one_(one), other_(other), may_open_sizes_(openness == Openness::kSizesAndNumbers) {}

  std::optional<std::vector<TracedCall>> calls() {
    if (one_.nodes.size() != other_.nodes.size()) return {};
    std::vector<TracedCall> joined;
    for (size_t i = 0; i < one_.nodes.size(); ++i) {
      auto call = joined_call(one_.nodes[i]->call, other_.nodes[i]->call);
      if (!call) return {};
      joined.push_back(std::move(*call));
    }
    return joined;
  }

  // The numbers of both traces at the places that are open now.
  std::array<std::vector<py::object>, 2> numbers;

 private:
  std::optional<TracedCall> joined_call(const TracedCall& one, const TracedCall& other) {
    if (!are_alike(one, other)) return {};
    TracedCall call = one;
    for (size_t i = 0; i < call.metas.size(); ++i) {
      const int value = call.first_value + static_cast<int>(i);
      if (!join(other.metas[i], value, value >= call.first_result, &call.metas[i])) return {};
      is_open_.push_back(call.metas[i].has_open_sizes());
    }
    // Numbers of arithmetic have no effect on shapes and errors.
    const bool is_arithmetic = call.function->rule.is_arithmetic;
    call.has_static_results = true;
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (!join(one.arguments[i], other.arguments[i], one, i, &call.arguments[i])) return {};
      const bool reads_open =
          (!is_arithmetic && has_number(call.arguments[i])) ||
          reads_open_sizes(call.arguments[i], [this](int value) { return is_open_[value]; });
      call.has_static_results = call.has_static_results && !reads_open;
    }
    if (call.has_static_results) {
      const auto is_open = [](const TracedTensorMeta& meta) { return meta.has_open_sizes(); };
      const auto results = call.metas.begin() + (call.first_result - call.first_value);
      if (std::any_of(results, call.metas.end(), is_open)) return {};
    } else if (!one.places || !other.places) {
      return {};
    }
    return call;
  }

  static bool are_alike(const TracedCall& one, const TracedCall& other) {
    const auto equal = [](const py::str& a, const py::str& b) { return a.equal(b); };
    return one.function == other.function && one.has_gradient == other.has_gradient &&
           one.first_value == other.first_value && one.first_result == other.first_result &&
           one.views == other.views && one.metas.size() == other.metas.size() &&
           one.arguments.size() == other.arguments.size() &&
           std::equal(one.keywords.begin(), one.keywords.end(), other.keywords.begin(),
                      other.keywords.end(), equal) &&
           is_same_result(one.result, other.result);
  }

  static bool is_same_result(const Argument& one, const Argument& other) {
    if (one.kind != other.kind || one.value != other.value || one.type != other.type) return false;
    if (one.kind == Argument::Kind::kConstant) return one.constant.ptr() == other.constant.ptr();
    if (one.kind == Argument::Kind::kUninitialized && (one.empty || other.empty)) {
      return one.empty && other.empty && *one.empty == *other.empty;
    }
    return std::equal(one.items.begin(), one.items.end(), other.items.begin(), other.items.end(),
                      is_same_result);
  }

  bool join(const Argument& one, const Argument& other, const TracedCall& call, size_t at,
            Argument* joined) {
    PyObject *const number = number_in(one_.sample, one), *const other_number =
                                                              number_in(other_.sample, other);
    const bool is_same_number = one.kind == Argument::Kind::kConstant && other.kind == one.kind &&
                                equals_constant(one, other.constant.ptr());
    if (number != nullptr && other_number != nullptr && !is_same_number) {
      const NumberKind rule = call.number_rules[at];
      const bool is_open = may_open_sizes_ || !is_size(rule);
      const bool is_negative = rule == NumberKind::kBound && is_below_zero(number);
      if (!is_open || !may_differ(rule, is_negative, number) ||
          !may_differ(rule, is_negative, other_number)) {
        return false;
      }
      joined->kind = Argument::Kind::kNumber;
      joined->is_negative = is_negative;
      joined->number = static_cast<int>(numbers[0].size());
      joined->constant = {};
      numbers[0].push_back(py::reinterpret_borrow<py::object>(number));
      numbers[1].push_back(py::reinterpret_borrow<py::object>(other_number));
      return true;
    }
    if (one.kind != other.kind || one.value != other.value || one.type != other.type ||
        one.items.size() != other.items.size()) {
      return false;
    }
    if (one.kind == Argument::Kind::kConstant) return equals_constant(one, other.constant.ptr());
    for (size_t i = 0; i < one.items.size(); ++i) {
      if (!join(one.items[i], other.items[i], call, at, &joined->items[i])) return false;
    }
    return true;
  }

  bool join(const TracedTensorMeta& other, int value, bool is_result, TracedTensorMeta* joined) {
    const phi::DDim &shape = one_.sample.shapes[value], &other_shape = other_.sample.shapes[value];
    if (shape.size() != other_shape.size() || (!may_open_sizes_ && shape != other_shape)) {
      return false;
    }
    for (int axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] != other_shape[axis] || other.shape[axis] < 0) joined->shape[axis] = -1;
    }
    if (is_result) {
      joined->is_contiguous = joined->is_contiguous && other.is_contiguous;
      return joined->dtype == other.dtype && joined->stop_gradient == other.stop_gradient &&
             !joined->is_parameter && !other.is_parameter;
    }
    if (!joined->is_similar(other)) return false;
    if (joined->has_open_sizes()) {
      return joined->merged_axes == other.merged_axes && !joined->is_parameter;
    }
    return joined->strides == other.strides;
  }

  const SampledTrace &one_, &other_;
  const bool may_open_sizes_;
  std::vector<bool> is_open_;  // whether a value has open sizes
};

bool are_equal(const Argument& one, const Argument& other) {
  if (one.kind != other.kind || one.value != other.value || one.number != other.number ||
      one.is_negative != other.is_negative || one.type != other.type) {
    return false;
  }
  if (one.kind == Argument::Kind::kConstant) return equals_constant(one, other.constant.ptr());
  return std::equal(one.items.begin(), one.items.end(), other.items.begin(), other.items.end(),
                    are_equal);
}

// Whether calls of open traces, which are alike, are open in the same sizes and numbers.
bool are_equal(const TracedCall& one, const TracedCall& other) {
  const auto has_equal_shape = [](const auto& a, const auto& b) {
    return a.shape == b.shape && a.is_similar(b);
  };
  return one.function == other.function && one.first_result == other.first_result &&
         one.keywords.size() == other.keywords.size() && one.views == other.views &&
         std::equal(one.arguments.begin(), one.arguments.end(), other.arguments.begin(),
                    other.arguments.end(), [](auto& a, auto& b) { return are_equal(a, b); }) &&
         std::equal(one.metas.begin(), one.metas.end(), other.metas.begin(), other.metas.end(),
                    has_equal_shape);
}

TraceNode* find_or_add_open_child(TraceNode* node, TracedCall call) {
  for (const auto& child : node->open_children) {
    if (!child->is_retired && are_equal(child->call, call)) return child.get();
  }
  return node->add_open_child(std::move(call));
}

void add_numbers(const Argument& from, const std::vector<py::object>& numbers, const Argument& to,
                 std::vector<py::object>* found) {
  if (to.kind == Argument::Kind::kNumber) {
    found->push_back(from.kind == Argument::Kind::kNumber ? numbers[from.number] : from.constant);
  }
  for (size_t i = 0; i < to.items.size(); ++i) {
    add_numbers(from.items[i], numbers, to.items[i], found);
  }
}

}  // namespace

static NumberKind number_rule(const TracedCall& call, size_t argument, bool has_float_operand) {
  const ShapeRule& rule = call.function->rule.shape_rule;
  const auto keyword = call.keyword_of(argument);
  const std::string name = parameter_of(rule, argument, keyword ? keyword->c_str() : nullptr);
  const auto contains = [&name](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (contains(rule.numbers)) return has_float_operand ? NumberKind::kFloat : NumberKind::kNone;
  if (!contains(rule.sizes)) return NumberKind::kNone;
  switch (rule.kind) {
    case ShapeRule::Kind::kReshape:
      return NumberKind::kPositiveSize;
    case ShapeRule::Kind::kSlice:
    case ShapeRule::Kind::kSubscript:
      return NumberKind::kBound;
    default:
      return NumberKind::kSize;
  }
}

paddle::small_vector<NumberKind, 8> number_rules(const TracedCall& call, const PyObjects& given) {
  paddle::small_vector<NumberKind, 8> rules(given.size(), NumberKind::kNone);
  if (call.function->rule.is_arithmetic) {
    if (has_number_operand(*call.function, given)) rules[1] = NumberKind::kFloat;
    if (has_integer_operand(*call.function, given)) rules[1] = NumberKind::kInteger;
    return rules;
  }
  const bool has_float_operand = !given.empty() && is_tensor(given[0]) &&
                                 tensor_of(given[0]).dtype() == phi::DataType::FLOAT32;
  for (size_t i = 0; i < given.size(); ++i) rules[i] = number_rule(call, i, has_float_operand);
  return rules;
}

bool may_differ(NumberKind rule, bool is_negative, PyObject* number) {
  switch (rule) {
    case NumberKind::kNone:
      return false;
    case NumberKind::kFloat:
      return is_number(number);
    case NumberKind::kInteger:
      return is_integer(number);
    case NumberKind::kBound:
      return is_integer(number) && is_below_zero(number) == is_negative;
    case NumberKind::kSize:
    case NumberKind::kPositiveSize:
      break;
  }
  return is_integer(number) &&
         PyLong_AsLongLong(number) >= (rule == NumberKind::kPositiveSize ? 1 : 0);
}

TraceNode* open_traces(TraceNode* root, TraceNode* one, TraceNode* other, Openness openness) {
  const SampledTrace first{nodes_to(*one), one->samples.front()},
      second{nodes_to(*other), other->samples.back()};
  Joining joining(first, second, openness);
  auto calls = joining.calls();
  if (!calls) return nullptr;
  TraceNode* end = root;
  for (size_t i = 0; i < calls->size(); ++i) {
    auto *const node = const_cast<TraceNode*>(first.nodes[i]), *const same = const_cast<TraceNode*>(
                                                                   second.nodes[i]);
    if (node == same && node->parent == end) {
      end = node;
      continue;
    }
    end = find_or_add_open_child(end, std::move((*calls)[i]));
    for (TraceNode* each : {node, same}) {
      const auto& known = each->opened;
      const bool is_new = std::find(known.begin(), known.end(), end) == known.end();
      if (each != end && is_new) each->opened.push_back(end);
    }
  }
  if (end->samples.empty()) {
    end->samples = {{first.sample.shapes, std::move(joining.numbers[0])},
                    {second.sample.shapes, std::move(joining.numbers[1])}};
  }
  for (const auto& each : other->graph_breaks) end->graph_breaks.insert(each);
  return end;
}

bool has_open_sizes(const TraceNode& node) {
  for (const TraceNode* each : nodes_to(node)) {
    const TracedCall& call = each->call;
    const auto is_open = [](const TracedTensorMeta& meta) { return meta.has_open_sizes(); };
    if (std::any_of(call.metas.begin(), call.metas.end(), is_open)) return true;
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      if (has_open_sizes(call, i)) return true;
    }
  }
  return false;
}

std::vector<TraceNode*> with_opened(TraceNode* node) {
  std::vector<TraceNode*> found{node};
  for (size_t i = 0; i < found.size(); ++i) {
    for (TraceNode* each : found[i]->opened) {
      if (std::find(found.begin(), found.end(), each) == found.end()) found.push_back(each);
    }
  }
  return found;
}

std::vector<py::object> numbers_of(const TraceNode& from, const std::vector<py::object>& numbers,
                                   const TraceNode& to) {
  const auto known = nodes_to(from), wanted = nodes_to(to);
  std::vector<py::object> found;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& arguments = wanted[i]->call.arguments;
    for (size_t at = 0; at < arguments.size(); ++at) {
      add_numbers(known[i]->call.arguments[at], numbers, arguments[at], &found);
    }
  }
  return found;
}

}  // namespace paddle_ngraph
