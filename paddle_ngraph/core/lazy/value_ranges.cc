#include "core/lazy/value_ranges.h"

#include <algorithm>
#include <limits>

#include "core/lazy/lazy_tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

bool satisfies(const ValueRule& rule, const PyObjects& given, const Trace& trace) {
  if (rule.kind == ValueRule::Kind::kNone) return true;
  const auto known = [&trace](PyObject* tensor) {
    return trace.is_deferred(tensor) ? nullptr : plain_tensor(tensor);
  };
  ValueRanges ranges(trace);
  const auto range = [&](PyObject* tensor, int64_t column,
                         int64_t columns) -> std::optional<IntegerRange> {
    if (!trace.is_deferred(tensor)) return {};
    return ranges.of_column(trace.index_of(tensor), column, columns);
  };
  return satisfies(rule, given, known, range);
}

std::optional<IntegerRange> ValueRanges::of_value(int value) {
  // An index outside of the values is that of a lazy tensor of another thread: its range is
  // unknown.
  if (value < 0 || value >= trace_.num_values()) return {};
  const auto found = known_.find(value);
  if (found != known_.end()) return found->second;
  std::optional<IntegerRange> range;
  if (trace_.is_result(value)) {
    const auto dtype = trace_.meta_of(value).dtype;
    if (dtype == phi::DataType::BOOL) {
      range = IntegerRange{0, 1};
    } else if (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32) {
      range = of_result(trace_.call_of(value), value);
    }
    constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
    if (range && (range->upper > kInt32Max || range->lower < -kInt32Max)) range.reset();
  } else if (trace_.tensors()[value]) {
    const phi::DenseTensor* tensor = plain_tensor(trace_.tensors()[value].ptr());
    if (tensor != nullptr) range = range_of_tensor(*tensor);
  } else {
    range = trace_.released_range(value);
  }
  return known_.emplace(value, range).first->second;
}

// The integer that an argument is; nothing for arguments of other types.
static std::optional<int64_t> integer_of(const Trace& trace, const Argument* argument) {
  if (argument == nullptr) return {};
  PyObject* object = nullptr;
  if (argument->kind == Argument::Kind::kConstant) object = argument->constant.ptr();
  if (argument->kind == Argument::Kind::kNumber) object = trace.numbers()[argument->number].ptr();
  if (object == nullptr || !PyLong_CheckExact(object)) return {};
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional(number) : std::nullopt;
}

std::optional<IntegerRange> ValueRanges::of_column(int value, int64_t column, int64_t columns) {
  if (value >= 0 && value < trace_.num_values() && trace_.is_result(value)) {
    const TracedCall& call = trace_.call_of(value);
    const bool is_stacked = call.function->rule.range_rule.kind == RangeRule::Kind::kStacked &&
                            call.arguments[0].kind == Argument::Kind::kSequence &&
                            static_cast<int64_t>(call.arguments[0].items.size()) == columns;
    const auto axis = integer_of(trace_, call.argument(1, "axis"));
    const int last = trace_.shapes()[value].size() - 1;
    if (is_stacked && axis && (*axis == -1 || *axis == last)) {
      return of_argument(call.arguments[0].items[column]);
    }
  }
  return of_value(value);
}

std::optional<IntegerRange> ValueRanges::of_argument(const Argument& argument) {
  if (argument.kind == Argument::Kind::kValue) return of_value(argument.value);
  if (const auto number = integer_of(trace_, &argument)) return IntegerRange{*number, *number};
  if (argument.kind != Argument::Kind::kSequence || argument.items.empty()) return {};
  std::optional<IntegerRange> all;
  for (const Argument& item : argument.items) {
    const auto range = of_argument(item);
    if (!range) return {};
    all = all ? union_of(*all, *range) : *range;
  }
  return all;
}

std::optional<IntegerRange> ValueRanges::of_argument(const TracedCall& call, size_t at) {
  if (at >= call.arguments.size() - call.keywords.size()) return {};
  return of_argument(call.arguments[at]);
}

std::optional<IntegerRange> ValueRanges::of_result(const TracedCall& call, int value) {
  using Kind = RangeRule::Kind;
  const RangeRule& rule = call.function->rule.range_rule;
  switch (rule.kind) {
    case Kind::kIndices:
      return of_indices(call);
    case Kind::kSorted:
      return value > call.first_result ? of_indices(call) : of_argument(call, 0);
    case Kind::kStacked:
      return of_argument(call, 0);
    case Kind::kPreserved: {
      std::optional<IntegerRange> all;
      for (const size_t at : rule.sources) {
        const auto range = of_argument(call, at);
        if (!range) return {};
        all = all ? union_of(*all, *range) : *range;
      }
      return all;
    }
    case Kind::kClipped:
      return of_clipped(call);
    default:
      break;
  }
  const auto one = of_argument(call, 0), other = of_argument(call, 1);
  return one && other ? combine_ranges(rule.kind, *one, *other) : std::nullopt;
}

// The range of indices along an axis of the first argument, or of all its elements.
std::optional<IntegerRange> ValueRanges::of_indices(const TracedCall& call) const {
  if (call.arguments.empty() || call.arguments[0].kind != Argument::Kind::kValue) return {};
  const RangeRule& rule = call.function->rule.range_rule;
  const phi::DDim& dims = trace_.shapes()[call.arguments[0].value];
  const Argument* const flat = call.argument(3, "flatten");
  const bool is_flat =
      rule.kind == RangeRule::Kind::kIndices && flat != nullptr && flat->constant.ptr() == Py_True;
  const auto axis = integer_of(trace_, call.argument(rule.axis_argument, "axis"));
  if (!axis || is_flat || dims.size() == 0) return IntegerRange{0, phi::product(dims) - 1};
  return IntegerRange{0, dims[static_cast<int>((*axis + dims.size()) % dims.size())] - 1};
}

std::optional<IntegerRange> ValueRanges::of_clipped(const TracedCall& call) {
  const auto lower = of_argument(call, 1), upper = of_argument(call, 2);
  auto range = of_argument(call, 0);
  if (!range) {
    if (!lower || !upper) return {};
    return IntegerRange{lower->lower, std::max(lower->upper, upper->upper)};
  }
  if (lower) range->lower = std::max(range->lower, lower->lower);
  if (lower) range->upper = std::max(range->upper, lower->lower);
  if (upper) range->upper = std::min(range->upper, upper->upper);
  if (upper) range->lower = std::min(range->lower, upper->lower);
  return range;
}

}  // namespace paddle_ngraph
