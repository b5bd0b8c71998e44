#include "core/paddle/integer_ranges.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

namespace {

constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

// Calls `visit` with each element of one column of a tensor's last axis.
template <typename T, typename Visit>
void visit_elements(const phi::DenseTensor& tensor, int64_t column, int64_t columns,
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
IntegerRange range_of_elements(const phi::DenseTensor& tensor, std::optional<int64_t> ignored,
                               int64_t column, int64_t columns) {
  IntegerRange range{kInt64Max, kInt64Min};
  visit_elements<T>(tensor, column, columns, [&](T value) {
    const auto number = static_cast<int64_t>(value);
    if (ignored && number == *ignored) return;
    range.lower = std::min(range.lower, number);
    range.upper = std::max(range.upper, number);
  });
  return range;
}

bool is_index_dtype(PyObject* tensor) {
  const auto dtype = tensor_of(tensor).dtype();
  return dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32;
}

std::optional<int64_t> integer_argument(const PyObjects& given, int at) {
  if (at < 0 || at >= static_cast<int>(given.size())) return {};
  PyObject* object = given[at];
  if (!PyLong_Check(object)) return {};
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional<int64_t>(value) : std::nullopt;
}

// Checks the arguments of one call against a ValueRule.
class ValueCheck {
 public:
  ValueCheck(const ValueRule& rule, const PyObjects& given,
             const std::function<const phi::DenseTensor*(PyObject*)>& known,
             const LazyRange& range_of)
      : rule_(rule), given_(given), known_(known), range_of_(range_of) {}

  bool are_valid() const {
    if (rule_.index_argument >= given_.size() || rule_.indexed_argument >= given_.size())
      return false;
    PyObject* values = given_[rule_.index_argument];
    switch (rule_.kind) {
      case ValueRule::Kind::kNone:
        return true;
      case ValueRule::Kind::kNonzeroDivisor:
        return is_divisor(values);
      case ValueRule::Kind::kClassIds: {
        const auto classes = integer_argument(given_, static_cast<int>(rule_.indexed_argument));
        return classes && is_tensor(values) && is_below(values, *classes);
      }
      case ValueRule::Kind::kSubscript:
        return is_valid_subscript(values);
      case ValueRule::Kind::kSliceAssignment:
        if (given_.size() != 3 || !may_be_assigned(given_[2])) return false;
        if (is_whole_mask(values)) return !is_tensor(given_[2]);
        return is_slice(values) || is_row_index(values);
      case ValueRule::Kind::kIndexPerAxis:
        return are_indices_per_axis(values);
      case ValueRule::Kind::kCoordinates:
        return are_coordinates(values);
      case ValueRule::Kind::kAlongAxis:
        return are_indices_along_axis(values);
    }
    return false;
  }

 private:
  bool are_indices_along_axis(PyObject* positions) const {
    if (!is_tensor(positions) || !is_tensor(given_[rule_.indexed_argument])) return false;
    if (!is_index_dtype(positions)) {
      // Accepts soft labels (probabilities), if the next argument declares them. Paddle's kernels
      // accept labels that are not integers, but their gradients do not.
      const bool is_float = tensor_of(positions).dtype() == phi::DataType::FLOAT32 ||
                            tensor_of(positions).dtype() == phi::DataType::FLOAT64;
      return is_float && rule_.index_argument + 1 < given_.size() &&
             given_[rule_.index_argument + 1] == Py_True;
    }
    const auto& dims = tensor_of(given_[rule_.indexed_argument]).dims();
    int64_t axis = rule_.axis;
    if (rule_.axis_argument >= 0) {
      const auto found = integer_argument(given_, rule_.axis_argument);
      if (!found) return false;
      axis = *found;
    }
    if (axis < 0) axis += dims.size();
    return axis >= 0 && axis < dims.size() && is_below(positions, dims[axis]);
  }

  bool are_coordinates(PyObject* positions) const {
    if (!is_tensor(positions) || !is_tensor(given_[rule_.indexed_argument])) return false;
    const auto& dims = tensor_of(given_[rule_.indexed_argument]).dims();
    const auto& shape = tensor_of(positions).dims();
    if (shape.size() == 0) return false;
    const int64_t columns = shape[shape.size() - 1];
    if (columns < 1 || columns > dims.size()) return false;
    for (int64_t column = 0; column < columns; ++column) {
      if (!is_below(positions, dims[column], column, columns)) return false;
    }
    return true;
  }

  bool are_indices_per_axis(PyObject* list) const {
    if (!PyList_Check(list) && !PyTuple_Check(list)) return false;
    if (!is_tensor(given_[rule_.indexed_argument])) return false;
    const auto& dims = tensor_of(given_[rule_.indexed_argument]).dims();
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

  // Whether a subscript is a nonempty list of ints, which selects along one axis.
  static bool is_int_list(PyObject* item) {
    if (!PyList_Check(item)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(item); ++i) {
      if (!PyLong_CheckExact(PyList_GET_ITEM(item, i))) return false;
    }
    return PyList_GET_SIZE(item) > 0;
  }

  bool is_valid_subscript(PyObject* index) const {
    // Without tensors, each call that matches the trace has an equal subscript.
    if (!has_tensor(index)) return true;
    if (!is_tensor(given_[rule_.indexed_argument])) return false;
    const auto& dims = tensor_of(given_[rule_.indexed_argument]).dims();
    PyObjects items{index};
    if (PyTuple_Check(index)) {
      items.assign(PySequence_Fast_ITEMS(index),
                   PySequence_Fast_ITEMS(index) + PyTuple_GET_SIZE(index));
    }
    // Rejects new axes: Paddle counts them in the subscript, but not where it then resolves the
    // indices.
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
      } else if (!PyLong_CheckExact(item) && !is_int_list(item) &&
                 !(PySlice_Check(item) && !has_tensor(item))) {
        return false;
      }
      ++axis;
    }
    return true;
  }

  static bool is_slice(PyObject* index) {
    PyObjects items{index};
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

  // The tensor that is a whole subscript of a float32 tensor; else null.
  PyObject* tensor_subscript(PyObject* subscript) const {
    if (PyTuple_Check(subscript) && PyTuple_GET_SIZE(subscript) == 1) {
      subscript = PyTuple_GET_ITEM(subscript, 0);
    }
    const auto& indexed = tensor_of(given_[rule_.indexed_argument]);
    const bool is_float = indexed.dtype() == phi::DataType::FLOAT32 && indexed.dims().size() > 0;
    return is_float && is_tensor(subscript) ? subscript : nullptr;
  }

  // Whether a subscript selects elements of a tensor by a mask of its shape.
  bool is_whole_mask(PyObject* subscript) const {
    PyObject* const mask = tensor_subscript(subscript);
    return mask != nullptr && tensor_of(mask).dtype() == phi::DataType::BOOL &&
           tensor_of(mask).dims() == tensor_of(given_[rule_.indexed_argument]).dims();
  }

  // Whether a subscript selects rows of a tensor by valid integers, for a value of its dtype.
  bool is_row_index(PyObject* subscript) const {
    PyObject* const rows = tensor_subscript(subscript);
    const auto& indexed = tensor_of(given_[rule_.indexed_argument]);
    if (rows == nullptr || tensor_of(rows).numel() == 0 || !is_below(rows, indexed.dims()[0])) {
      return false;
    }
    if (!is_tensor(given_[2])) return true;
    // Of rows that are written twice, Paddle gives the gradient to the first value, not the last.
    return tensor_of(given_[2]).dtype() == indexed.dtype() &&
           (stops_gradient(given_[2]) || are_distinct(rows, indexed.dims()[0]));
  }

  // Whether the integers of a tensor are known, and each is another index of `size` rows.
  bool are_distinct(PyObject* rows, int64_t size) const {
    const phi::DenseTensor* const memory = known_(rows);
    if (memory == nullptr || !memory->meta().is_contiguous()) return false;
    std::set<int64_t> found;
    for (int64_t i = 0; i < memory->numel(); ++i) {
      const int64_t row = memory->dtype() == phi::DataType::INT64 ? memory->data<int64_t>()[i]
                                                                  : memory->data<int32_t>()[i];
      if (!found.insert(row < 0 ? row + size : row).second) return false;
    }
    return true;
  }

  // Whether the assignment x[...] = value may be deferred: for a tensor, or for a scalar that is
  // representable in the dtype of x and that all kernels convert to equal elements.
  bool may_be_assigned(PyObject* value) const {
    if (is_tensor(value)) return true;
    const bool is_bool = PyBool_Check(value) != 0;
    const auto whole = integer_argument(given_, 2);
    switch (tensor_of(given_[rule_.indexed_argument]).dtype()) {
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
    if (!std::all_of(given_.begin(), given_.begin() + rule_.index_argument + 1, is_whole))
      return true;
    if (const auto value = integer_argument(given_, static_cast<int>(rule_.index_argument)))
      return *value > 0;
    if (!is_tensor(divisor) || !is_index_dtype(divisor)) return false;
    const auto found = range(divisor, {}, 0, 1);
    return found && found->lower > 0;
  }

  std::optional<IntegerRange> range(PyObject* tensor, std::optional<int64_t> ignored,
                                    int64_t column, int64_t columns) const {
    if (const auto lazy_range = range_of_(tensor, column, columns)) return lazy_range;
    const phi::DenseTensor* memory = known_(tensor);
    if (memory == nullptr) return {};
    return range_of_tensor(*memory, ignored, column, columns);
  }

  bool is_below(PyObject* positions, int64_t end, int64_t column = 0, int64_t columns = 1) const {
    if (!is_index_dtype(positions)) return false;
    const auto found =
        range(positions, integer_argument(given_, rule_.ignored_argument), column, columns);
    return found && (found->upper < found->lower ||
                     (found->lower >= (rule_.from_end ? -end : 0) && found->upper < end));
  }

  const ValueRule& rule_;
  const PyObjects& given_;
  const std::function<const phi::DenseTensor*(PyObject*)>& known_;
  const LazyRange& range_of_;
};

int64_t floor_divided(int64_t number, int64_t divisor) {
  return number / divisor - (number % divisor < 0 ? 1 : 0);
}

}  // namespace

std::optional<IntegerRange> range_of_tensor(const phi::DenseTensor& tensor,
                                            std::optional<int64_t> ignored, int64_t column,
                                            int64_t columns) {
  switch (tensor.dtype()) {
    case phi::DataType::INT64:
      return range_of_elements<int64_t>(tensor, ignored, column, columns);
    case phi::DataType::INT32:
      return range_of_elements<int32_t>(tensor, ignored, column, columns);
    case phi::DataType::BOOL:
      return IntegerRange{0, 1};
    default:
      return {};
  }
}

bool satisfies(const ValueRule& rule, const PyObjects& given,
               const std::function<const phi::DenseTensor*(PyObject*)>& known,
               const LazyRange& range_of) {
  if (rule.kind == ValueRule::Kind::kNone) return true;
  return ValueCheck(rule, given, known, range_of).are_valid();
}

std::optional<IntegerRange> combine_ranges(RangeRule::Kind kind, const IntegerRange& one,
                                           const IntegerRange& other) {
  // Bound of values whose products do not overflow int64.
  constexpr int64_t kLarge = int64_t{1} << 30;
  for (const IntegerRange& each : {one, other}) {
    if (each.upper < each.lower || each.lower < -kLarge || each.upper > kLarge) return {};
  }
  switch (kind) {
    case RangeRule::Kind::kSum:
      return IntegerRange{one.lower + other.lower, one.upper + other.upper};
    case RangeRule::Kind::kDifference:
      return IntegerRange{one.lower - other.upper, one.upper - other.lower};
    case RangeRule::Kind::kProduct: {
      const auto [lower, upper] = std::minmax({one.lower * other.lower, one.lower * other.upper,
                                               one.upper * other.lower, one.upper * other.upper});
      return IntegerRange{lower, upper};
    }
    case RangeRule::Kind::kQuotient: {
      if (other.lower <= 0) return {};
      const auto [lower, upper] = std::minmax(
          {floor_divided(one.lower, other.lower), floor_divided(one.lower, other.upper),
           floor_divided(one.upper, other.lower), floor_divided(one.upper, other.upper)});
      return IntegerRange{lower, upper};
    }
    case RangeRule::Kind::kRemainder:
      if (other.lower <= 0) return {};
      return IntegerRange{0, other.upper - 1};
    default:
      return {};
  }
}

}  // namespace paddle_ngraph
