// Whole numbers that operators are given: which values they ask of them, and which they make.
//
// Operators that look something up raise where a position is out of range, or read beyond memory.
// One may wait if that cannot happen: its positions are known, or made of what bounds them, as the
// place of a maximum is below the size of its axis.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// From the least to the most; none if the most is less.
struct NumberRange {
  int64_t least;
  int64_t most;
};

// The least range that holds both.
inline NumberRange united(const NumberRange& one, const NumberRange& other) {
  return {std::min(one.least, other.least), std::max(one.most, other.most)};
}

// The values that an operator asks of whole numbers that it is given.
struct ValueRule {
  enum class Kind {
    kNone,
    kAlong,    // positions along an axis of a tensor
    kClasses,  // positions below a number
    kPlaces,   // positions whose last axis counts along the first axes of a tensor
    kEach,     // a list of positions, one tensor for each of the first axes
    kIndex,    // what stands in brackets behind a tensor
    kDivisor,  // not 0, where whole numbers are divided
    kSlice,    // what stands in brackets: no tensors, lists nor new axes; and what is put there
  };
  Kind kind = Kind::kNone;
  size_t at = 0;          // the argument that holds them
  size_t of = 0;          // the tensor, or the number of kClasses
  int axis_at = -1;       // the argument that is the axis
  int axis = 0;           // the axis, where none is
  bool from_end = false;  // negative positions count from the end
  int ignored_at = -1;    // the argument that stands for no position
};

// What is known of whole numbers that an operator makes.
struct NumberRule {
  enum class Kind {
    kUnknown,
    kMoved,    // they are those of tensors that it is given
    kStacked,  // those of a list of tensors, along an axis of their own
    kPlaces,   // places along an axis of the first argument
    kSorted,   // its first result is moved, the second holds places
    kSum,
    kDifference,
    kProduct,
    kQuotient,
    kRemainder,
    kClipped,
  };
  Kind kind = Kind::kUnknown;
  std::vector<size_t> of;  // of kMoved: the arguments
  size_t axis_at = 1;      // of places: the argument that is the axis
};

// The range of all numbers of a tensor, or of one column of its last axis, if there are columns.
using RangeOf =
    std::function<std::optional<NumberRange>(PyObject* tensor, int64_t column, int64_t columns)>;

// The range of all numbers but one of a tensor; of one column of its last axis, if there are
// columns. Nothing if it holds other numbers than these.
std::optional<NumberRange> range_of_numbers(const phi::DenseTensor& tensor,
                                            std::optional<int64_t> ignored = {}, int64_t column = 0,
                                            int64_t columns = 1);

// Whether what an operator is given has the values that it asks for. `known` returns the memory of
// a tensor that has some, `range_of` says what is known of one that waits.
bool has_values(const ValueRule& rule, const std::vector<PyObject*>& given,
                const std::function<const phi::DenseTensor*(PyObject*)>& known,
                const RangeOf& range_of);

// What is made of numbers in these ranges, which has this dtype.
std::optional<NumberRange> combined(NumberRule::Kind kind, const NumberRange& one,
                                    const NumberRange& other);

}  // namespace paddle_ngraph
