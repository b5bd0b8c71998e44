// A recorded call of an operator: its arguments and results, as values of a trace.
#pragma once

#include <pybind11/pytypes.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/ddim.h"
#include "paddle/phi/core/tensor_meta.h"
#include "paddle/utils/small_vector.h"

#include "core/paddle/shape_rules.h"

namespace paddle_ngraph {

struct InterceptedFunction;

// The metadata of a tensor in a trace. Tensors with equal metadata are interchangeable there.
struct TracedTensorMeta {
  phi::DataType dtype;
  phi::DDim shape;  // -1: a size that differs from call to call
  bool stop_gradient;
  bool is_contiguous;
  bool is_parameter;
  // Compared, too, since some operators return an alias or a copy depending on strides.
  phi::DDim strides;
  // Bit i: axes i and i + 1 are one in memory. Compared in place of strides if sizes are open.
  uint32_t merged_axes = 0;

  bool operator==(const TracedTensorMeta& other) const;
  // Whether tensors with this metadata are of many shapes.
  bool has_open_sizes() const;
  // Whether the metadata is of the same kind, apart from sizes and strides.
  bool is_similar(const TracedTensorMeta& other) const;
};

// Whether a shape has the sizes of another one, in which -1 is any size.
bool has_sizes(const phi::DDim& shape, const phi::DDim& sizes);

// The metadata of an argument or result; nothing if the tensor cannot be part of a graph.
std::optional<TracedTensorMeta> traced_meta(PyObject* tensor);

// An argument or result of a call: a value, by its index in the trace; a list, tuple or slice; a
// constant; a number that differs from call to call, by its index among these; or an uninitialized
// tensor, which is never read or computed.
struct Argument {
  enum class Kind { kValue, kSequence, kConstant, kNumber, kUninitialized };
  Kind kind = Kind::kConstant;
  int value = -1;
  int number = -1;
  bool is_negative = false;      // whether a kNumber of NumberKind::kBound is
  PyTypeObject* type = nullptr;  // type of a kSequence: list, tuple or slice
  std::vector<Argument> items;
  pybind11::object constant;
  bool is_any_of_type = false;  // whether the constant (a CPU place) equals all others of its type
  // Dtype and shape of a kUninitialized tensor that has no elements, and so needs no memory.
  std::shared_ptr<const phi::DenseTensorMeta> empty;
  bool stop_gradient = true;
};

// Whether an object is a constant of a trace, which is compared by value, not by identity.
bool is_constant(PyObject* object);
bool equals_constant(const Argument& constant, PyObject* given);

// Stands for a value, by its index in the trace, in the calls that `make_graph` gets.
struct TracedValue {
  int index;
};

// Which numbers at a place of a call may differ from call to call.
enum class NumberKind : uint8_t {
  kNone,
  kSize,          // sizes and indices that do not count from the end
  kPositiveSize,  // sizes without 0, which stands for the size of another tensor
  kBound,         // bounds of slices and indices, all of which count from the same end
  kFloat,         // floats, and integers that are floats
  kInteger,       // integers of 32 bits
};

// Whether shapes of results may depend on a number with this rule.
inline bool is_size(NumberKind rule) {
  return rule == NumberKind::kSize || rule == NumberKind::kPositiveSize ||
         rule == NumberKind::kBound;
}

// The shapes of the results of a call.
using ResultShapes = paddle::small_vector<phi::DDim, 2>;

// A call of an operator. It appends to the values of the earlier calls: first the tensors that no
// earlier call has used, then its results.
struct TracedCall {
  const InterceptedFunction* function = nullptr;
  bool has_gradient = true;
  // Positional arguments, with self of a method first; then keyword arguments.
  std::vector<Argument> arguments;
  std::vector<pybind11::str> keywords;
  Argument result;
  int first_value = 0;
  int first_result = 0;
  std::vector<TracedTensorMeta> metas;
  // For each result that is an alias: index of the result -> index of the value whose memory it
  // shares.
  std::map<int, int> views;
  // Where the arguments are on which the shapes of the results depend; nothing unless the rule of
  // the operator has given the shapes (result_shapes.h).
  std::optional<ParameterPlaces> places;
  // Whether the results have the noted shapes in an open trace, too, since no argument has open
  // sizes.
  bool has_static_results = true;
  // For each argument, the numbers in it that may differ (open_traces.h).
  paddle::small_vector<NumberKind, 8> number_rules;

  int num_results() const { return first_value + static_cast<int>(metas.size()) - first_result; }
  // The name by which the argument at an index is passed; null: by its position.
  std::optional<std::string> keyword_of(size_t argument) const;

  const TracedTensorMeta& meta_of(int value) const { return metas[value - first_value]; }
  // The argument at index `at`, or that of the keyword `name`; null if there is none.
  const Argument* argument(size_t at, const char* name) const;
};

// Converts an argument or result to Python. The functions supply its tensors, the numbers that
// differ from call to call, and uninitialized tensors.
template <typename GetValue, typename GetNumber, typename GetUninitialized>
pybind11::object to_python(const Argument& argument, const GetValue& get_value,
                           const GetNumber& get_number, const GetUninitialized& get_uninitialized) {
  namespace py = pybind11;
  if (argument.kind == Argument::Kind::kValue) return get_value(argument.value);
  if (argument.kind == Argument::Kind::kNumber) return get_number(argument.number);
  if (argument.kind == Argument::Kind::kConstant) return argument.constant;
  if (argument.kind == Argument::Kind::kUninitialized) return get_uninitialized();
  py::list items;
  for (const Argument& item : argument.items) {
    items.append(to_python(item, get_value, get_number, get_uninitialized));
  }
  if (argument.type == &PyList_Type) return items;
  if (argument.type == &PySlice_Type) {
    return py::reinterpret_steal<py::object>(PySlice_New(
        py::object(items[0]).ptr(), py::object(items[1]).ptr(), py::object(items[2]).ptr()));
  }
  return py::tuple(items);
}

}  // namespace paddle_ngraph
