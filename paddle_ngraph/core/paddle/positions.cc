#include "core/paddle/positions.h"

#include <algorithm>
#include <limits>

#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Calls `visit` with each number of a column.
template <typename T, typename Visit>
void visit_numbers(const phi::DenseTensor& tensor, int64_t column, int64_t columns,
                   const Visit& visit) {
  const T* first = tensor.data<T>();
  const int64_t count = tensor.numel();
  if (tensor.meta().is_contiguous()) {
    for (int64_t i = column; i < count; i += columns) visit(first[i]);
    return;
  }
  const auto& dims = tensor.dims();
  const auto& strides = tensor.strides();
  for (int64_t i = column; i < count; i += columns) {
    int64_t rest = i, at = 0;
    for (int axis = dims.size() - 1; axis >= 0; --axis) {
      at += rest % dims[axis] * strides[axis];
      rest /= dims[axis];
    }
    visit(first[at]);
  }
}

template <typename T>
NumberRange range_of_type(const phi::DenseTensor& tensor, std::optional<int64_t> ignored,
                          int64_t column, int64_t columns) {
  NumberRange range{kMost, kLeast};
  visit_numbers<T>(tensor, column, columns, [&](T value) {
    const auto number = static_cast<int64_t>(value);
    if (ignored && number == *ignored) return;
    range.least = std::min(range.least, number);
    range.most = std::max(range.most, number);
  });
  return range;
}

bool holds_positions(PyObject* tensor) {
  const auto dtype = tensor_of(tensor).dtype();
  return dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32;
}

std::optional<int64_t> number(const std::vector<PyObject*>& given, int at) {
  if (at < 0 || at >= static_cast<int>(given.size())) return {};
  PyObject* object = given[at];
  if (!PyLong_Check(object)) return {};
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional<int64_t>(value) : std::nullopt;
}

// A call whose values are looked at.
class Values {
 public:
  Values(const ValueRule& rule, const std::vector<PyObject*>& given,
         const std::function<const phi::DenseTensor*(PyObject*)>& known, const RangeOf& range_of)
      : rule_(rule), given_(given), known_(known), range_of_(range_of) {}

  bool are_right() const {
    if (rule_.at >= given_.size() || rule_.of >= given_.size()) return false;
    PyObject* values = given_[rule_.at];
    switch (rule_.kind) {
      case ValueRule::Kind::kNone:
        return true;
      case ValueRule::Kind::kDivisor:
        return is_divisor(values);
      case ValueRule::Kind::kClasses: {
        const auto classes = number(given_, static_cast<int>(rule_.of));
        return classes && is_tensor(values) && is_below(values, *classes);
      }
      case ValueRule::Kind::kIndex:
        return is_index(values);
      case ValueRule::Kind::kSlice:
        return given_.size() == 3 && is_slice(values) && may_be_put(given_[2]);
      case ValueRule::Kind::kEach:
        return is_each(values);
      case ValueRule::Kind::kPlaces:
        return are_places(values);
      case ValueRule::Kind::kAlong:
        return is_along(values);
    }
    return false;
  }

 private:
  bool is_along(PyObject* positions) const {
    if (!is_tensor(positions) || !is_tensor(given_[rule_.of])) return false;
    if (!holds_positions(positions)) {
      // Probabilities for labels, if the argument behind them says so. Paddle's kernels take
      // labels that are no whole numbers, but not their gradients.
      const bool is_float = tensor_of(positions).dtype() == phi::DataType::FLOAT32 ||
                            tensor_of(positions).dtype() == phi::DataType::FLOAT64;
      return is_float && rule_.at + 1 < given_.size() && given_[rule_.at + 1] == Py_True;
    }
    const auto& dims = tensor_of(given_[rule_.of]).dims();
    int64_t axis = rule_.axis;
    if (rule_.axis_at >= 0) {
      const auto found = number(given_, rule_.axis_at);
      if (!found) return false;
      axis = *found;
    }
    if (axis < 0) axis += dims.size();
    return axis >= 0 && axis < dims.size() && is_below(positions, dims[axis]);
  }

  bool are_places(PyObject* positions) const {
    if (!is_tensor(positions) || !is_tensor(given_[rule_.of])) return false;
    const auto& dims = tensor_of(given_[rule_.of]).dims();
    const auto& shape = tensor_of(positions).dims();
    if (shape.size() == 0) return false;
    const int64_t columns = shape[shape.size() - 1];
    if (columns < 1 || columns > dims.size()) return false;
    for (int64_t column = 0; column < columns; ++column) {
      if (!is_below(positions, dims[column], column, columns)) return false;
    }
    return true;
  }

  bool is_each(PyObject* list) const {
    if (!PyList_Check(list) && !PyTuple_Check(list)) return false;
    if (!is_tensor(given_[rule_.of])) return false;
    const auto& dims = tensor_of(given_[rule_.of]).dims();
    if (PySequence_Fast_GET_SIZE(list) > dims.size()) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
      PyObject* positions = PySequence_Fast_GET_ITEM(list, i);
      if (!is_tensor(positions) || !is_below(positions, dims[i])) return false;
    }
    return true;
  }

  static bool has_tensor(PyObject* item) {
    if (is_tensor(item)) return true;
    if (PySlice_Check(item)) {
      const auto* slice = reinterpret_cast<PySliceObject*>(item);
      return is_tensor(slice->start) || is_tensor(slice->stop) || is_tensor(slice->step);
    }
    if (!PyList_Check(item) && !PyTuple_Check(item)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(item); ++i) {
      if (has_tensor(PySequence_Fast_GET_ITEM(item, i))) return true;
    }
    return false;
  }

  // Whether a list is one of positions along one axis.
  static bool is_list_of_numbers(PyObject* item) {
    if (!PyList_Check(item)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(item); ++i) {
      if (!PyLong_CheckExact(PyList_GET_ITEM(item, i))) return false;
    }
    return PyList_GET_SIZE(item) > 0;
  }

  bool is_index(PyObject* index) const {
    if (!has_tensor(index)) return true;  // what it asks for is the same in each such call
    if (!is_tensor(given_[rule_.of])) return false;
    const auto& dims = tensor_of(given_[rule_.of]).dims();
    std::vector<PyObject*> items{index};
    if (PyTuple_Check(index)) {
      items.assign(PySequence_Fast_ITEMS(index),
                   PySequence_Fast_ITEMS(index) + PyTuple_GET_SIZE(index));
    }
    // Paddle counts a new axis, but not where it then looks for the positions.
    if (std::find(items.begin(), items.end(), Py_None) != items.end()) return false;
    const auto takes_axis = [](PyObject* item) { return item != Py_Ellipsis; };
    const auto taken = std::count_if(items.begin(), items.end(), takes_axis);
    if (taken > dims.size()) return false;
    int64_t axis = 0;
    for (PyObject* item : items) {
      if (item == Py_Ellipsis) axis += dims.size() - taken;
      if (!takes_axis(item)) continue;
      if (is_tensor(item)) {
        if (axis >= dims.size() || !is_below(item, dims[axis])) return false;
      } else if (!PyLong_CheckExact(item) && !is_list_of_numbers(item) &&
                 !(PySlice_Check(item) && !has_tensor(item))) {
        return false;
      }
      ++axis;
    }
    return true;
  }

  static bool is_slice(PyObject* index) {
    std::vector<PyObject*> items{index};
    if (PyTuple_Check(index)) {
      items.assign(PySequence_Fast_ITEMS(index),
                   PySequence_Fast_ITEMS(index) + PyTuple_GET_SIZE(index));
    }
    const auto is_end = [](PyObject* end) { return end == Py_None || PyLong_CheckExact(end); };
    if (std::count(items.begin(), items.end(), Py_Ellipsis) > 1) return false;
    return std::all_of(items.begin(), items.end(), [&](PyObject* item) {
      if (!PySlice_Check(item)) return item == Py_Ellipsis || PyLong_CheckExact(item);
      const auto* slice = reinterpret_cast<PySliceObject*>(item);
      return is_end(slice->start) && is_end(slice->stop) && is_end(slice->step);
    });
  }

  // Tensors, and numbers that the dtype of the written one holds, as far as kernels agree on them.
  bool may_be_put(PyObject* value) const {
    if (is_tensor(value)) return true;
    const bool is_bool = PyBool_Check(value) != 0;
    const auto whole = number(given_, 2);
    switch (tensor_of(given_[rule_.of]).dtype()) {
      case phi::DataType::FLOAT32:
      case phi::DataType::FLOAT64:
        return whole || PyFloat_CheckExact(value);
      case phi::DataType::INT64:
        return whole && !is_bool;
      case phi::DataType::INT32:
        return whole && !is_bool && *whole == static_cast<int32_t>(*whole);
      case phi::DataType::BOOL:
        return is_bool;
      default:
        return false;
    }
  }

  bool is_divisor(PyObject* divisor) const {
    const auto is_whole = [](PyObject* object) {
      if (!is_tensor(object)) return !PyFloat_Check(object);
      const auto dtype = tensor_of(object).dtype();
      return dtype != phi::DataType::FLOAT32 && dtype != phi::DataType::FLOAT64;
    };
    if (!std::all_of(given_.begin(), given_.begin() + rule_.at + 1, is_whole)) return true;
    if (const auto value = number(given_, static_cast<int>(rule_.at))) return *value > 0;
    if (!is_tensor(divisor) || !holds_positions(divisor)) return false;
    const auto found = range(divisor, {}, 0, 1);
    return found && found->least > 0;
  }

  std::optional<NumberRange> range(PyObject* tensor, std::optional<int64_t> ignored, int64_t column,
                                   int64_t columns) const {
    if (const auto waiting = range_of_(tensor, column, columns)) return waiting;
    const phi::DenseTensor* memory = known_(tensor);
    if (memory == nullptr) return {};
    return range_of_numbers(*memory, ignored, column, columns);
  }

  bool is_below(PyObject* positions, int64_t end, int64_t column = 0, int64_t columns = 1) const {
    if (!holds_positions(positions)) return false;
    const auto found = range(positions, number(given_, rule_.ignored_at), column, columns);
    return found && (found->most < found->least ||
                     (found->least >= (rule_.from_end ? -end : 0) && found->most < end));
  }

  const ValueRule& rule_;
  const std::vector<PyObject*>& given_;
  const std::function<const phi::DenseTensor*(PyObject*)>& known_;
  const RangeOf& range_of_;
};

int64_t floor_divided(int64_t number, int64_t divisor) {
  return number / divisor - (number % divisor < 0 ? 1 : 0);
}

}  // namespace

std::optional<NumberRange> range_of_numbers(const phi::DenseTensor& tensor,
                                            std::optional<int64_t> ignored, int64_t column,
                                            int64_t columns) {
  switch (tensor.dtype()) {
    case phi::DataType::INT64:
      return range_of_type<int64_t>(tensor, ignored, column, columns);
    case phi::DataType::INT32:
      return range_of_type<int32_t>(tensor, ignored, column, columns);
    case phi::DataType::BOOL:
      return NumberRange{0, 1};
    default:
      return {};
  }
}

bool has_values(const ValueRule& rule, const std::vector<PyObject*>& given,
                const std::function<const phi::DenseTensor*(PyObject*)>& known,
                const RangeOf& range_of) {
  if (rule.kind == ValueRule::Kind::kNone) return true;
  return Values(rule, given, known, range_of).are_right();
}

std::optional<NumberRange> combined(NumberRule::Kind kind, const NumberRange& one,
                                    const NumberRange& other) {
  constexpr int64_t kLarge = int64_t{1} << 30;  // of which products are known, too
  for (const NumberRange& each : {one, other}) {
    if (each.most < each.least || each.least < -kLarge || each.most > kLarge) return {};
  }
  switch (kind) {
    case NumberRule::Kind::kSum:
      return NumberRange{one.least + other.least, one.most + other.most};
    case NumberRule::Kind::kDifference:
      return NumberRange{one.least - other.most, one.most - other.least};
    case NumberRule::Kind::kProduct: {
      const auto [least, most] = std::minmax({one.least * other.least, one.least * other.most,
                                              one.most * other.least, one.most * other.most});
      return NumberRange{least, most};
    }
    case NumberRule::Kind::kQuotient: {
      if (other.least <= 0) return {};
      const auto [least, most] =
          std::minmax({floor_divided(one.least, other.least), floor_divided(one.least, other.most),
                       floor_divided(one.most, other.least), floor_divided(one.most, other.most)});
      return NumberRange{least, most};
    }
    case NumberRule::Kind::kRemainder:
      if (other.least <= 0) return {};
      return NumberRange{0, other.most - 1};
    default:
      return {};
  }
}

}  // namespace paddle_ngraph
