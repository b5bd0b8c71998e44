#include "core/lazy/result_shapes.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "core/lazy/inferred_shapes.h"
#include "core/lazy/python_arguments.h"
#include "core/paddle/python_tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

using Shape = paddle::small_vector<int64_t, phi::DDim::kMaxRank>;
using Shapes = paddle::small_vector<Shape, 2>;

// The names of the parameters, in order.
constexpr std::array<const char*, kNumParameters> kNames{"adaptive",
                                                         "axes",
                                                         "axis",
                                                         "ceil_mode",
                                                         "data_format",
                                                         "decrease_axis",
                                                         "dilations",
                                                         "downscale_factor",
                                                         "ends",
                                                         "equation",
                                                         "filter",
                                                         "flatten",
                                                         "global_pooling",
                                                         "grid",
                                                         "groups",
                                                         "hidden_size",
                                                         "index",
                                                         "is_bidirec",
                                                         "k",
                                                         "keepdim",
                                                         "kernel_size",
                                                         "kernel_sizes",
                                                         "label",
                                                         "max",
                                                         "mean",
                                                         "min",
                                                         "num",
                                                         "num_classes",
                                                         "out_d",
                                                         "out_h",
                                                         "out_size",
                                                         "out_w",
                                                         "output_padding",
                                                         "output_size",
                                                         "padding_algorithm",
                                                         "paddings",
                                                         "perm",
                                                         "pre_state",
                                                         "reduce_all",
                                                         "reduction",
                                                         "repeat_times",
                                                         "repeats",
                                                         "scale",
                                                         "scale_tensor",
                                                         "sections",
                                                         "shape",
                                                         "size_tensor",
                                                         "start_axis",
                                                         "starts",
                                                         "stop_axis",
                                                         "strides",
                                                         "transpose_x",
                                                         "transpose_y",
                                                         "upscale_factor",
                                                         "value",
                                                         "weight",
                                                         "x",
                                                         "y"};

// Names by which Paddle accepts a parameter, too.
constexpr std::array<std::pair<const char*, const char*>, 6> kAliases{{{"input", "x"},
                                                                       {"tensors", "x"},
                                                                       {"other", "y"},
                                                                       {"mat2", "y"},
                                                                       {"dim", "axis"},
                                                                       {"keepdims", "keepdim"}}};
// Parameters that change no shape.
constexpr std::array<const char*, 3> kOthers{"out", "name", "dtype"};

// The arguments of a call, by the names of the parameters. An argument of another type than asked
// for makes the arguments invalid, and a default value is returned.
class CallArguments {
 public:
  CallArguments(const ParameterPlaces& places, const PyObjects& given)
      : places_(places), given_(given) {}

  bool is_valid() const { return is_valid_; }
  void require(bool condition) { is_valid_ = is_valid_ && condition; }
  // All arguments.
  const PyObjects& all() const { return given_; }

  // Null without the argument, or where it is None.
  PyObject* find(Parameter parameter) const {
    const int at = places_[static_cast<size_t>(parameter)];
    return at < 0 || given_[at] == Py_None ? nullptr : given_[at];
  }

  // Shape of a tensor.
  Shape shape(PyObject* tensor) {
    require(tensor != nullptr && is_tensor(tensor));
    if (!is_valid_) return {};
    const phi::DDim& dims = tensor_of(tensor).dims();
    return Shape(dims.Get(), dims.Get() + dims.size());
  }
  Shape shape(Parameter parameter) { return shape(find(parameter)); }

  PyObjects items(PyObject* sequence) {
    require(sequence != nullptr && is_sequence(sequence) && !is_slice(sequence));
    return is_valid_ ? sequence_items(sequence) : PyObjects();
  }
  Shapes shapes(Parameter parameter) {
    Shapes found;
    for (PyObject* item : items(find(parameter))) found.push_back(shape(item));
    require(!found.empty());
    if (!is_valid_) return {{}};
    return found;
  }

  int64_t integer(PyObject* object) {
    require(object != nullptr && (PyLong_CheckExact(object) || is_foreign_number(object)));
    if (!is_valid_) return 0;
    const int64_t number = PyLong_AsLongLong(object);
    if (number != -1 || !PyErr_Occurred()) return number;
    PyErr_Clear();
    is_valid_ = false;
    return 0;
  }
  int64_t integer(Parameter parameter, std::optional<int64_t> otherwise = {}) {
    PyObject* const object = find(parameter);
    return object == nullptr && otherwise ? *otherwise : integer(object);
  }
  // An integer counts as a list of one.
  Shape integers(Parameter parameter, bool is_optional = false) {
    PyObject* const object = find(parameter);
    if (object == nullptr && is_optional) return {};
    if (object != nullptr && !is_sequence(object)) return {integer(object)};
    Shape found;
    for (PyObject* item : items(object)) found.push_back(integer(item));
    return found;
  }
  bool flag(Parameter parameter, bool otherwise = false) {
    PyObject* const object = find(parameter);
    if (object == nullptr) return otherwise;
    require(PyBool_Check(object));
    return object == Py_True;
  }
  // A float, or an integer, as Paddle rounds it for float32 tensors.
  float number(PyObject* object) {
    require(PyFloat_CheckExact(object) || PyLong_CheckExact(object) || is_foreign_number(object));
    if (!is_valid_) return 0;
    const double number = PyFloat_AsDouble(object);
    if (number != -1 || PyErr_Occurred() == nullptr) return static_cast<float>(number);
    PyErr_Clear();
    is_valid_ = false;
    return 0;
  }
  std::string text(Parameter parameter, const char* otherwise = "") {
    PyObject* const object = find(parameter);
    if (object == nullptr) return otherwise;
    require(PyUnicode_Check(object));
    return is_valid_ ? PyUnicode_AsUTF8(object) : "";
  }

  // The index of an axis of `rank` axes; negative ones count from the end.
  size_t axis(int64_t given, size_t rank) {
    const auto count = static_cast<int64_t>(rank);
    require(-count <= given && given < count);
    if (!is_valid_) return 0;
    return given < 0 ? given + count : given;
  }

 private:
  const ParameterPlaces& places_;
  const PyObjects& given_;
  bool is_valid_ = true;
};

int64_t product(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Shape broadcast(CallArguments* arguments, const Shape& one, const Shape& other) {
  const Shape& longer = one.size() >= other.size() ? one : other;
  const Shape& shorter = one.size() >= other.size() ? other : one;
  Shape found = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& size = found[offset + i];
    arguments->require(size == shorter[i] || size == 1 || shorter[i] == 1);
    size = size == 1 ? shorter[i] : size;
  }
  return found;
}

// -- moves ---------------------------------------------------------------------------------------

Shape reshaped(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  Shape to = arguments->integers(Parameter::kShape);
  int64_t known = 1;
  size_t inferred = to.size();
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] == 0) {
      arguments->require(i < from.size());
      if (i < from.size()) to[i] = from[i];
    }
    if (to[i] == -1) {
      arguments->require(inferred == to.size());
      inferred = i;
    } else {
      known *= to[i];
    }
  }
  arguments->require(known > 0);
  if (inferred < to.size() && known > 0) to[inferred] = product(from) / known;
  arguments->require(product(to) == product(from));
  return to;
}

// A permutation of the first axes leaves those behind them where they are.
Shape transposed(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  const auto order = arguments->integers(Parameter::kPerm);
  Shape to = from;
  arguments->require(order.size() <= from.size());
  for (size_t i = 0; i < order.size() && arguments->is_valid(); ++i) {
    const size_t at = arguments->axis(order[i], from.size());
    arguments->require(at < order.size());
    if (arguments->is_valid()) to[i] = from[at];
  }
  return to;
}

Shape concatenated(CallArguments* arguments) {
  const Shapes parts = arguments->shapes(Parameter::kX);
  Shape found = parts[0];
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, 0), found.size());
  for (size_t i = 1; i < parts.size() && arguments->is_valid(); ++i) {
    arguments->require(parts[i].size() == found.size());
    for (size_t at = 0; at < found.size() && arguments->is_valid(); ++at) {
      if (at == axis) {
        found[at] += parts[i][at];
      } else {
        arguments->require(parts[i][at] == found[at]);
      }
    }
  }
  return found;
}

Shape stacked(CallArguments* arguments) {
  const Shapes parts = arguments->shapes(Parameter::kX);
  Shape found = parts[0];
  for (const Shape& part : parts) arguments->require(part == found);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, 0), found.size() + 1);
  found.insert(found.begin() + axis, static_cast<int64_t>(parts.size()));
  return found;
}

Shapes split(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, 0), from.size());
  if (!arguments->is_valid()) return {};
  Shape sizes;
  if (arguments->find(Parameter::kNum) != nullptr) {
    const int64_t number = arguments->integer(Parameter::kNum);
    arguments->require(number > 0 && from[axis] % number == 0);
    if (arguments->is_valid()) sizes.assign(number, from[axis] / number);
  } else {
    sizes = arguments->integers(Parameter::kSections);
    const auto inferred = std::find(sizes.begin(), sizes.end(), -1);
    const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (inferred != sizes.end()) *inferred = from[axis] - (sum + 1);
    const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    arguments->require(all == from[axis]);
  }
  Shapes found;
  for (const int64_t size : sizes) {
    found.push_back(from);
    found.back()[axis] = size;
  }
  return found;
}

Shapes unbound(CallArguments* arguments) {
  Shape from = arguments->shape(Parameter::kX);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, 0), from.size());
  constexpr int64_t kMaxParts = 4096;
  arguments->require(!from.empty() && axis < from.size() && from[axis] <= kMaxParts);
  if (!arguments->is_valid()) return {};
  const int64_t number = from[axis];
  from.erase(from.begin() + axis);
  return Shapes(static_cast<size_t>(number), from);
}

Shape squeezed(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  const Shape axes = arguments->integers(Parameter::kAxis, /*is_optional=*/true);
  std::vector<bool> is_removed(from.size(), axes.empty());
  for (const int64_t axis : axes) {
    const size_t at = arguments->axis(axis, from.size());
    if (at < from.size()) is_removed[at] = true;
  }
  Shape to;
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 || !is_removed[i]) to.push_back(from[i]);
  }
  return to;
}

Shape unsqueezed(CallArguments* arguments) {
  Shape to = arguments->shape(Parameter::kX);
  for (const int64_t axis : arguments->integers(Parameter::kAxis)) {
    to.insert(to.begin() + arguments->axis(axis, to.size() + 1), 1);
  }
  return to;
}

Shape flattened(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  arguments->require(!from.empty());
  const size_t first = arguments->axis(arguments->integer(Parameter::kStartAxis, 0), from.size());
  const size_t last = arguments->axis(arguments->integer(Parameter::kStopAxis, -1), from.size());
  arguments->require(first <= last);
  if (!arguments->is_valid()) return {};
  Shape to(from.begin(), from.begin() + first);
  to.push_back(product({from.begin() + first, from.begin() + last + 1}));
  to.insert(to.end(), from.begin() + last + 1, from.end());
  return to;
}

Shape expanded(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  Shape to = arguments->integers(Parameter::kShape);
  arguments->require(to.size() >= from.size());
  if (!arguments->is_valid()) return {};
  const size_t offset = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (to[offset + i] == -1) to[offset + i] = from[i];
    arguments->require(from[i] == 1 || from[i] == to[offset + i]);
  }
  return to;
}

Shape tiled(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  Shape repeats = arguments->integers(Parameter::kRepeatTimes);
  const size_t rank = std::max(found.size(), repeats.size());
  found.insert(found.begin(), rank - found.size(), 1);
  repeats.insert(repeats.begin(), rank - repeats.size(), 1);
  for (size_t i = 0; i < rank; ++i) found[i] *= repeats[i];
  return found;
}

Shape repeated(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis), found.size());
  const int64_t repeats = arguments->integer(Parameter::kRepeats);
  arguments->require(!found.empty() && repeats > 0);
  if (arguments->is_valid()) found[axis] *= repeats;
  return found;
}

Shapes meshed(CallArguments* arguments) {
  const Shapes axes = arguments->shapes(Parameter::kX);
  Shape grid;
  for (const Shape& axis : axes) {
    arguments->require(axis.size() <= 1);
    grid.push_back(axis.empty() ? 1 : axis[0]);
  }
  return Shapes(axes.size(), grid);
}

Shape clipped(CallArguments* arguments) {
  PyObject *const least = arguments->find(Parameter::kMin), *const most =
                                                                arguments->find(Parameter::kMax);
  if (least != nullptr && most != nullptr) {
    const float lower = arguments->number(least), upper = arguments->number(most);
    arguments->require(lower <= upper);  // otherwise Paddle raises
  }
  return arguments->shape(Parameter::kX);
}

Shape padded(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Shape pads = arguments->integers(Parameter::kPaddings);
  if (arguments->find(Parameter::kDataFormat) == nullptr) {
    arguments->require(pads.size() == 2 * found.size());
    for (size_t i = 0; i < found.size() && arguments->is_valid(); ++i) {
      found[i] += pads[2 * i] + pads[2 * i + 1];
    }
    return found;
  }
  arguments->require(found.size() == 5 && pads.size() == 6);
  const bool has_channels_last = arguments->text(Parameter::kDataFormat) == "NDHWC";
  for (size_t i = 0; i < 3 && arguments->is_valid(); ++i) {
    found[(has_channels_last ? 3 : 4) - i] += pads[2 * i] + pads[2 * i + 1];
  }
  return found;
}

// -- selections ----------------------------------------------------------------------------------

// The number of elements from `start` to before `end`; both are clamped, and count from the end if
// they are negative.
int64_t count(CallArguments* arguments, int64_t size, int64_t start, int64_t end, int64_t step) {
  arguments->require(step > 0);
  if (!arguments->is_valid()) return 0;
  const auto clamp = [size](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  return std::max<int64_t>(0, (clamp(end) - clamp(start) + step - 1) / step);
}

Shape sliced(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const auto axes = arguments->integers(Parameter::kAxes),
             starts = arguments->integers(Parameter::kStarts),
             ends = arguments->integers(Parameter::kEnds),
             steps = arguments->integers(Parameter::kStrides, /*is_optional=*/true),
             removed = arguments->integers(Parameter::kDecreaseAxis, /*is_optional=*/true);
  arguments->require(starts.size() == axes.size() && ends.size() == axes.size() &&
                     (steps.empty() || steps.size() == axes.size()));
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t at = arguments->axis(axes[i], found.size());
    if (!arguments->is_valid()) return {};
    int64_t& size = found[at];
    size = count(arguments, size, starts[i], ends[i], steps.empty() ? 1 : steps[i]);
  }
  std::vector<bool> is_removed(found.size(), false);
  for (const int64_t axis : removed) {
    const size_t at = arguments->axis(axis, found.size());
    if (!arguments->is_valid()) return {};
    arguments->require(found[at] == 1);
    is_removed[at] = true;
  }
  Shape rest;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!is_removed[i]) rest.push_back(found[i]);
  }
  return rest;
}

Shape subscripted(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  PyObject* const index = arguments->find(Parameter::kIndex);
  if (index == nullptr) {  // None: a new axis
    Shape found = from;
    found.insert(found.begin(), 1);
    return found;
  }
  const auto items = PyTuple_Check(index) ? sequence_items(index) : PyObjects{index};
  const auto takes_axis = [](PyObject* item) { return item != Py_None && item != Py_Ellipsis; };
  const auto number = static_cast<size_t>(std::count_if(items.begin(), items.end(), takes_axis));
  const auto is_ellipsis = [](PyObject* item) { return item == Py_Ellipsis; };
  arguments->require(number <= from.size() &&
                     std::count_if(items.begin(), items.end(), is_ellipsis) <= 1);
  if (!arguments->is_valid()) return {};
  Shape found;
  size_t axis = 0;
  for (PyObject* item : items) {
    if (item == Py_None) {
      found.push_back(1);
    } else if (item == Py_Ellipsis) {
      for (size_t i = number; i < from.size(); ++i) found.push_back(from[axis++]);
    } else if (is_slice(item)) {
      const PyObjects bounds = sequence_items(item);
      const int64_t size = from[axis++];
      const auto bound = [&](int i, int64_t otherwise) {
        return bounds[i] == Py_None ? otherwise : arguments->integer(bounds[i]);
      };
      found.push_back(count(arguments, size, bound(0, 0), bound(1, size), bound(2, 1)));
    } else if (is_tensor(item)) {
      // Several tensors would be broadcast together, and a mask counts its elements.
      arguments->require(items.size() == 1 && tensor_of(item).dtype() != phi::DataType::BOOL);
      const Shape indices = arguments->shape(item);
      found.insert(found.end(), indices.begin(), indices.end());
      ++axis;
    } else {
      arguments->axis(arguments->integer(item), from[axis++]);
    }
    if (!arguments->is_valid()) return {};
  }
  found.insert(found.end(), from.begin() + axis, from.end());
  return found;
}

Shape assigned(CallArguments* arguments) {
  PyObject* index = arguments->find(Parameter::kIndex);
  const bool has_items = index != nullptr && PyTuple_Check(index);
  if (has_items && PyTuple_GET_SIZE(index) == 1) index = PyTuple_GET_ITEM(index, 0);
  const bool is_mask =
      index != nullptr && is_tensor(index) && tensor_of(index).dtype() == phi::DataType::BOOL;
  if (is_mask) {
    arguments->require(arguments->shape(index) == arguments->shape(Parameter::kX));
    return arguments->shape(Parameter::kX);
  }
  const Shape part = subscripted(arguments);
  PyObject* const value = arguments->find(Parameter::kValue);
  arguments->require(value != nullptr &&
                     std::all_of(part.begin(), part.end(), [](int64_t size) { return size > 0; }));
  if (arguments->is_valid() && is_tensor(value)) {
    arguments->require(broadcast(arguments, part, arguments->shape(value)) == part);
  }
  return arguments->shape(Parameter::kX);
}

Shape gathered(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Shape index = arguments->shape(Parameter::kIndex);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, 0), found.size());
  arguments->require(index.size() <= 1);
  if (!arguments->is_valid()) return {};
  found.erase(found.begin() + axis);
  found.insert(found.begin() + axis, index.begin(), index.end());
  return found;
}

Shape gathered_nd(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  Shape found = arguments->shape(Parameter::kIndex);
  arguments->require(!found.empty() && found.back() <= static_cast<int64_t>(from.size()));
  if (!arguments->is_valid()) return {};
  const int64_t depth = found.back();
  found.pop_back();
  found.insert(found.end(), from.begin() + depth, from.end());
  return found;
}

// -- reductions ----------------------------------------------------------------------------------

Shape reduced(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  const Shape axes = arguments->integers(Parameter::kAxis, /*is_optional=*/true);
  const bool keeps = arguments->flag(Parameter::kKeepdim);
  const bool reduces_all = axes.empty() || arguments->flag(Parameter::kReduceAll) ||
                           arguments->flag(Parameter::kFlatten);
  std::vector<bool> is_reduced(from.size(), reduces_all);
  for (const int64_t axis : axes) {
    const size_t at = arguments->axis(axis, from.size());
    if (at < from.size()) is_reduced[at] = true;
  }
  Shape to;
  for (size_t i = 0; i < from.size(); ++i) {
    if (!is_reduced[i]) to.push_back(from[i]);
    if (is_reduced[i] && keeps) to.push_back(1);
  }
  return to;
}

Shape top_k(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis, -1), found.size());
  const int64_t number = arguments->integer(Parameter::kK);
  arguments->require(!found.empty() && number > 0 && number <= found[axis]);
  if (arguments->is_valid()) found[axis] = number;
  return found;
}

// -- products ------------------------------------------------------------------------------------

Shape multiplied(CallArguments* arguments) {
  Shape x = arguments->shape(Parameter::kX), y = arguments->shape(Parameter::kY);
  arguments->require(!x.empty() && !y.empty());
  if (!arguments->is_valid()) return {};
  const bool is_row = x.size() == 1, is_column = y.size() == 1;
  if (is_row) x.insert(x.begin(), 1);
  if (is_column) y.push_back(1);
  if (!is_row && arguments->flag(Parameter::kTransposeX)) std::swap(x.back(), x[x.size() - 2]);
  if (!is_column && arguments->flag(Parameter::kTransposeY)) std::swap(y.back(), y[y.size() - 2]);
  arguments->require(x.back() == y[y.size() - 2]);
  Shape found = broadcast(arguments, {x.begin(), x.end() - 2}, {y.begin(), y.end() - 2});
  if (!is_row) found.push_back(x[x.size() - 2]);
  if (!is_column) found.push_back(y.back());
  return found;
}

Shape dot_product(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  arguments->require(!found.empty() && arguments->shape(Parameter::kY) == found);
  if (arguments->is_valid()) found.pop_back();
  return found;
}

Shape matrix_vector_product(CallArguments* arguments) {
  const Shape matrix = arguments->shape(Parameter::kX), vector = arguments->shape(Parameter::kY);
  arguments->require(matrix.size() == 2 && vector.size() == 1 && matrix.back() == vector.back());
  return arguments->is_valid() ? Shape{matrix[0]} : Shape();
}

Shape swiglu(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  if (arguments->find(Parameter::kY) != nullptr) {
    arguments->require(arguments->shape(Parameter::kY) == found);
    return found;
  }
  arguments->require(!found.empty() && found.back() % 2 == 0);
  if (arguments->is_valid()) found.back() /= 2;
  return found;
}

Shape projected(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Shape weight = arguments->shape(Parameter::kWeight);
  arguments->require(!found.empty() && weight.size() == 2 && found.back() == weight[0]);
  if (arguments->is_valid()) found.back() = weight[1];
  return found;
}

// The shapes of a sum of products, as "bij,jk->bik", and of its operands.
Shapes summed(CallArguments* arguments) {
  const Shapes operands = arguments->shapes(Parameter::kX);
  const std::string equation = arguments->text(Parameter::kEquation);
  const size_t arrow = equation.find("->");
  arguments->require(arrow != std::string::npos);
  if (!arguments->is_valid()) return {};
  std::array<int64_t, 128> sizes{};
  size_t operand = 0, axis = 0;
  for (size_t i = 0; i < arrow && arguments->is_valid(); ++i) {
    const char label = equation[i];
    if (label == ',') {
      arguments->require(axis == operands[operand].size() && ++operand < operands.size());
      axis = 0;
      continue;
    }
    arguments->require(('a' <= label && label <= 'z') || ('A' <= label && label <= 'Z'));
    arguments->require(axis < operands[operand].size());
    if (!arguments->is_valid()) return {};
    int64_t& size = sizes[label];
    arguments->require(size == 0 || size == operands[operand][axis]);
    size = operands[operand][axis++];
  }
  arguments->require(operand + 1 == operands.size() && axis == operands[operand].size());
  Shapes results(1);
  for (size_t i = arrow + 2; i < equation.size() && arguments->is_valid(); ++i) {
    const char label = equation[i];
    arguments->require(label > 0 && sizes[label] > 0);
    if (arguments->is_valid()) results[0].push_back(sizes[label]);
  }
  // Paddle saves the operands with the labels of both and of the result first, and the summed ones
  // next to each other.
  const size_t comma = equation.find(',');
  const std::array<std::string, 2> labels{
      equation.substr(0, std::min(comma, arrow)),
      comma > arrow ? "" : equation.substr(comma + 1, arrow - comma - 1)};
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands.size() != 2) {
      results.push_back(operands[i]);
      continue;
    }
    Shape& saved = results.emplace_back();
    // 0: of both operands and the result, 1: of one operand, 2: summed
    constexpr std::array<std::array<int, 3>, 2> kOrders{{{0, 1, 2}, {0, 2, 1}}};
    for (const int kind : kOrders[i]) {
      for (const char label : labels[i]) {
        const bool is_shared = labels[1 - i].find(label) != std::string::npos;
        const bool is_kept = equation.find(label, arrow) != std::string::npos;
        if ((is_shared ? is_kept ? 0 : 2 : 1) == kind) saved.push_back(sizes[label]);
      }
    }
  }
  return results;
}

// -- windows -------------------------------------------------------------------------------------

// Where the axes of pictures are: axes `first` to before `first + number`, channels at `channel`.
struct Layout {
  size_t first, number, channel;
};

Layout layout_of(CallArguments* arguments, const Shape& shape) {
  arguments->require(shape.size() >= 3);
  if (!arguments->is_valid()) return {};
  const std::string format = arguments->text(Parameter::kDataFormat, "NCHW");
  const bool has_channels_last = format.back() == 'C' || format == "NWC";
  return {has_channels_last ? size_t{1} : size_t{2}, shape.size() - 2,
          has_channels_last ? shape.size() - 1 : 1};
}

// The sums of the paddings before and after each axis.
Shape padding_sums(CallArguments* arguments, size_t number) {
  const Shape paddings = arguments->integers(Parameter::kPaddings);
  const std::string algorithm = arguments->text(Parameter::kPaddingAlgorithm, "EXPLICIT");
  Shape sums(number, 0);
  if (algorithm == "VALID") return sums;
  arguments->require(algorithm == "EXPLICIT" &&
                     (paddings.size() == number || paddings.size() == 2 * number));
  for (size_t i = 0; i < number && arguments->is_valid(); ++i) {
    sums[i] = paddings.size() == number ? 2 * paddings[i] : paddings[2 * i] + paddings[2 * i + 1];
  }
  return sums;
}

Shape convolved(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Shape filter = arguments->shape(Parameter::kFilter);
  const Layout layout = layout_of(arguments, found);
  const auto strides = arguments->integers(Parameter::kStrides),
             dilations = arguments->integers(Parameter::kDilations),
             paddings = padding_sums(arguments, layout.number);
  arguments->require(filter.size() == found.size() && strides.size() == layout.number &&
                     dilations.size() == layout.number);
  for (size_t i = 0; i < layout.number && arguments->is_valid(); ++i) {
    int64_t& size = found[layout.first + i];
    const int64_t window = dilations[i] * (filter[2 + i] - 1) + 1;
    arguments->require(strides[i] > 0 && size + paddings[i] >= window);
    if (arguments->is_valid()) size = (size + paddings[i] - window) / strides[i] + 1;
  }
  if (arguments->is_valid()) found[layout.channel] = filter[0];
  return found;
}

Shape convolved_transposed(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Shape filter = arguments->shape(Parameter::kFilter);
  const Layout layout = layout_of(arguments, found);
  const auto strides = arguments->integers(Parameter::kStrides),
             dilations = arguments->integers(Parameter::kDilations),
             added = arguments->integers(Parameter::kOutputPadding, /*is_optional=*/true),
             paddings = padding_sums(arguments, layout.number);
  PyObject* const sizes = arguments->find(Parameter::kOutputSize);
  const int64_t groups = arguments->integer(Parameter::kGroups);
  arguments->require(filter.size() == found.size() && strides.size() == layout.number &&
                     dilations.size() == layout.number &&
                     (added.empty() || added.size() == layout.number) &&
                     (sizes == nullptr || arguments->items(sizes).empty()));
  if (!arguments->is_valid()) return {};
  arguments->require(found[layout.channel] == filter[0]);
  for (size_t i = 0; i < layout.number; ++i) {
    int64_t& size = found[layout.first + i];
    size = (size - 1) * strides[i] - paddings[i] + dilations[i] * (filter[2 + i] - 1) + 1 +
           (added.empty() ? 0 : added[i]);
  }
  found[layout.channel] = filter[1] * groups;
  return found;
}

Shape unfolded(CallArguments* arguments) {
  const Shape from = arguments->shape(Parameter::kX);
  const auto windows = arguments->integers(Parameter::kKernelSizes),
             strides = arguments->integers(Parameter::kStrides),
             paddings = arguments->integers(Parameter::kPaddings),
             dilations = arguments->integers(Parameter::kDilations);
  arguments->require(from.size() == 4 && windows.size() == 2 && strides.size() == 2 &&
                     paddings.size() == 4 && dilations.size() == 2);
  if (!arguments->is_valid()) return {};
  int64_t number = 1;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t window = dilations[i] * (windows[i] - 1) + 1;
    const int64_t rest = from[2 + i] + paddings[i] + paddings[2 + i] - window;
    arguments->require(strides[i] > 0 && rest >= 0);
    if (!arguments->is_valid()) return {};
    number *= rest / strides[i] + 1;
  }
  return {from[0], from[1] * windows[0] * windows[1], number};
}

Shape pooled(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Layout layout = layout_of(arguments, found);
  const auto windows = arguments->integers(Parameter::kKernelSize),
             strides = arguments->integers(Parameter::kStrides),
             paddings = padding_sums(arguments, layout.number);
  const bool is_global = arguments->flag(Parameter::kGlobalPooling),
             is_adaptive = arguments->flag(Parameter::kAdaptive),
             rounds_up = arguments->flag(Parameter::kCeilMode);
  arguments->require(windows.size() == layout.number && strides.size() == layout.number);
  for (size_t i = 0; i < layout.number && arguments->is_valid(); ++i) {
    int64_t& size = found[layout.first + i];
    if (is_global || is_adaptive) {
      size = is_global ? 1 : windows[i];
      continue;
    }
    const int64_t steps = size + paddings[i] - windows[i] + (rounds_up ? strides[i] - 1 : 0);
    arguments->require(steps >= 0 && strides[i] > 0);
    if (arguments->is_valid()) size = steps / strides[i] + 1;
  }
  return found;
}

Shape interpolated(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Layout layout = layout_of(arguments, found);
  constexpr std::array<Parameter, 3> kSizes{Parameter::kOutD, Parameter::kOutH, Parameter::kOutW};
  for (const Parameter other :
       {Parameter::kOutSize, Parameter::kSizeTensor, Parameter::kScaleTensor}) {
    arguments->require(arguments->find(other) == nullptr);
  }
  PyObject* const scales = arguments->find(Parameter::kScale);
  const auto factors = scales == nullptr ? PyObjects() : arguments->items(scales);
  arguments->require(layout.number <= kSizes.size() &&
                     (factors.empty() || factors.size() == layout.number));
  for (size_t i = 0; i < layout.number && arguments->is_valid(); ++i) {
    int64_t& size = found[layout.first + i];
    if (factors.empty()) {
      size = arguments->integer(kSizes[kSizes.size() - layout.number + i]);
    } else {
      arguments->require(PyFloat_CheckExact(factors[i]));
      if (!arguments->is_valid()) return {};
      const auto factor = static_cast<float>(PyFloat_AS_DOUBLE(factors[i]));
      size = static_cast<int64_t>(static_cast<float>(size) * factor);
    }
  }
  return found;
}

Shape shuffled(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Layout layout = layout_of(arguments, found);
  const int64_t factor = arguments->integer(Parameter::kUpscaleFactor);
  arguments->require(found.size() == 4 && factor > 0);
  if (!arguments->is_valid()) return {};
  arguments->require(found[layout.channel] % (factor * factor) == 0);
  found[layout.channel] /= factor * factor;
  for (size_t i = 0; i < layout.number; ++i) found[layout.first + i] *= factor;
  return found;
}

Shape unshuffled(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const Layout layout = layout_of(arguments, found);
  const int64_t factor = arguments->integer(Parameter::kDownscaleFactor);
  arguments->require(found.size() == 4 && factor > 0);
  if (!arguments->is_valid()) return {};
  found[layout.channel] *= factor * factor;
  for (size_t i = 0; i < layout.number; ++i) {
    arguments->require(found[layout.first + i] % factor == 0);
    found[layout.first + i] /= factor;
  }
  return found;
}

Shapes recurred(CallArguments* arguments) {
  Shape found = arguments->shape(Parameter::kX);
  const int64_t directions = arguments->flag(Parameter::kIsBidirec) ? 2 : 1;
  arguments->require(found.size() == 3);
  if (!arguments->is_valid()) return {};
  found.back() = arguments->integer(Parameter::kHiddenSize) * directions;
  Shapes results = arguments->shapes(Parameter::kPreState);
  results.insert(results.begin(), found);
  return results;
}

// -- losses --------------------------------------------------------------------------------------

// The loss for each element, or a number.
Shape divergence(CallArguments* arguments) {
  const Shape scores = arguments->shape(Parameter::kX);
  arguments->require(arguments->shape(Parameter::kLabel) == scores);
  return arguments->text(Parameter::kReduction, "mean") == "none" ? scores : Shape();
}

// A number, and the sum of the weights.
Shapes likelihood(CallArguments* arguments) {
  Shape scores = arguments->shape(Parameter::kX);
  arguments->require(scores.size() >= 2 &&
                     arguments->text(Parameter::kReduction, "mean") != "none");
  if (!arguments->is_valid()) return {};
  scores.erase(scores.begin() + 1);
  arguments->require(arguments->shape(Parameter::kLabel) == scores);
  return Shapes(2, Shape());
}

// -- all rules -----------------------------------------------------------------------------------

Shapes evaluate(ShapeRule::Kind kind, CallArguments* arguments, size_t num_results) {
  using Kind = ShapeRule::Kind;
  switch (kind) {
    case Kind::kUnknown:
    case Kind::kInferred:
      break;
    case Kind::kSame:
      return Shapes(num_results, arguments->shape(Parameter::kX));
    case Kind::kAllSame: {
      std::optional<Shape> found;
      const auto look = [&](PyObject* tensor) {
        const Shape shape = arguments->shape(tensor);
        arguments->require(!found || *found == shape);
        found = shape;
      };
      for (PyObject* each : arguments->all()) arguments->require(visit_tensors(each, look));
      arguments->require(found.has_value());
      return Shapes(num_results, found.value_or(Shape()));
    }
    case Kind::kFirstSame: {
      Shapes found(num_results, arguments->shape(Parameter::kMean));
      if (!found.empty()) found[0] = arguments->shape(Parameter::kX);
      return found;
    }
    case Kind::kBroadcast: {
      Shape found;
      for (PyObject* each : arguments->all()) {
        arguments->require(!is_sequence(each));
        if (is_tensor(each)) found = broadcast(arguments, found, arguments->shape(each));
      }
      return {found};
    }
    case Kind::kReshape:
      return {reshaped(arguments)};
    case Kind::kTranspose:
      return {transposed(arguments)};
    case Kind::kConcat:
      return {concatenated(arguments)};
    case Kind::kStack:
      return {stacked(arguments)};
    case Kind::kSplit:
      return split(arguments);
    case Kind::kUnbind:
      return unbound(arguments);
    case Kind::kSqueeze:
      return {squeezed(arguments)};
    case Kind::kUnsqueeze:
      return {unsqueezed(arguments)};
    case Kind::kFlatten:
      return {flattened(arguments)};
    case Kind::kExpand:
      return {expanded(arguments)};
    case Kind::kExpandAs: {
      const Shape target = arguments->shape(Parameter::kY);
      arguments->require(broadcast(arguments, arguments->shape(Parameter::kX), target) == target);
      return {target};
    }
    case Kind::kTile:
      return {tiled(arguments)};
    case Kind::kPad:
      return {padded(arguments)};
    case Kind::kMatmul:
      return {multiplied(arguments)};
    case Kind::kLinear:
      return {projected(arguments)};
    case Kind::kSlice:
      return {sliced(arguments)};
    case Kind::kSubscript:
      return {subscripted(arguments)};
    case Kind::kReduction:
      return {reduced(arguments)};
    case Kind::kTopK:
      return Shapes(num_results, top_k(arguments));
    case Kind::kGather:
      return {gathered(arguments)};
    case Kind::kGatherNd:
      return {gathered_nd(arguments)};
    case Kind::kEmbedding: {
      Shape found = arguments->shape(Parameter::kX);
      const Shape weight = arguments->shape(Parameter::kWeight);
      arguments->require(weight.size() == 2);
      if (arguments->is_valid()) found.push_back(weight[1]);
      return {found};
    }
    case Kind::kOneHot: {
      Shape found = arguments->shape(Parameter::kX);
      found.push_back(arguments->integer(Parameter::kNumClasses));
      return {found};
    }
    case Kind::kLikeIndex:
      return {arguments->shape(Parameter::kIndex)};
    case Kind::kConvolution:
      return {convolved(arguments)};
    case Kind::kPool:
      return Shapes(num_results, pooled(arguments));
    case Kind::kInterpolation:
      return {interpolated(arguments)};
    case Kind::kPixelShuffle:
      return {shuffled(arguments)};
    case Kind::kPixelUnshuffle:
      return {unshuffled(arguments)};
    case Kind::kGridSample: {
      Shape found = arguments->shape(Parameter::kX);
      const Shape grid = arguments->shape(Parameter::kGrid);
      arguments->require(found.size() == 4 && grid.size() == 4);
      if (arguments->is_valid()) found = {found[0], found[1], grid[1], grid[2]};
      return {found};
    }
    case Kind::kRecurrent:
      return recurred(arguments);
    case Kind::kDot:
      return {dot_product(arguments)};
    case Kind::kMatrixVector:
      return {matrix_vector_product(arguments)};
    case Kind::kSwiglu:
      return {swiglu(arguments)};
    case Kind::kDivergence:
      return {divergence(arguments)};
    case Kind::kLikelihood:
      return likelihood(arguments);
    case Kind::kEinsum: {
      // With gradients, the operands follow.
      Shapes found = summed(arguments);
      arguments->require(num_results <= found.size());
      if (arguments->is_valid()) found.resize(num_results);
      return found;
    }
    case Kind::kTransposedConvolution:
      return {convolved_transposed(arguments)};
    case Kind::kUnfold:
      return {unfolded(arguments)};
    case Kind::kMeshgrid:
      return meshed(arguments);
    case Kind::kRepeat:
      return {repeated(arguments)};
    case Kind::kCrossEntropy: {
      const Shape scores = arguments->shape(Parameter::kX);
      Shape losses = scores;
      const size_t axis = arguments->axis(arguments->integer(Parameter::kAxis), losses.size());
      if (arguments->is_valid()) losses[axis] = 1;
      return {scores, losses};
    }
    case Kind::kClip:
      return {clipped(arguments)};
    case Kind::kAssign:
      return {assigned(arguments)};
    case Kind::kFill:
      return {arguments->integers(Parameter::kShape)};
  }
  arguments->require(false);
  return {};
}

}  // namespace

std::string parameter_of(const ShapeRule& rule, size_t at, const char* keyword) {
  if (keyword == nullptr) return at < rule.parameters.size() ? rule.parameters[at] : "";
  std::string name = keyword;
  const auto& known = rule.parameters;
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  for (const auto& [alias, parameter] : kAliases) {
    if (name == alias) name = parameter;
  }
  if (std::find(known.begin(), known.end(), name) != known.end()) return name;
  return std::find(kOthers.begin(), kOthers.end(), name) == kOthers.end() ? "" : name;
}

std::optional<ParameterPlaces> parameter_places(const TracedCall& call) {
  const ShapeRule& rule = call.function->rule.shape_rule;
  ParameterPlaces places;
  places.fill(-1);
  if (rule.kind == ShapeRule::Kind::kUnknown) return {};
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const auto keyword = call.keyword_of(i);
    const std::string name = parameter_of(rule, i, keyword ? keyword->c_str() : nullptr);
    if (name.empty() || i > std::numeric_limits<int8_t>::max()) return {};
    const auto found = std::find(kNames.begin(), kNames.end(), name);
    if (found != kNames.end()) places[found - kNames.begin()] = static_cast<int8_t>(i);
  }
  return places;
}

bool find_result_shapes(const TracedCall& call, const PyObjects& given, ResultShapes* found) {
  found->clear();
  if (call.function->rule.shape_rule.kind == ShapeRule::Kind::kInferred) {
    return infer_result_shapes(call, given, found);
  }
  CallArguments arguments(*call.places, given);
  const Shapes shapes = evaluate(call.function->rule.shape_rule.kind, &arguments,
                                 static_cast<size_t>(call.num_results()));
  if (!arguments.is_valid() || shapes.size() != static_cast<size_t>(call.num_results())) {
    return false;
  }
  for (const Shape& shape : shapes) {
    const bool is_empty = std::any_of(shape.begin(), shape.end(), [](int64_t s) { return s < 1; });
    if (is_empty || shape.size() > phi::DDim::kMaxRank) return false;
    found->emplace_back(shape.data(), static_cast<int>(shape.size()));
  }
  return true;
}

}  // namespace paddle_ngraph
