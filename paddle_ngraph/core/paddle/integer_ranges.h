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
struct IntegerRange {
  int64_t lower;
  int64_t upper;
};

// The least range that holds both.
inline IntegerRange union_of(const IntegerRange& one, const IntegerRange& other) {
  return {std::min(one.lower, other.lower), std::max(one.upper, other.upper)};
}

// The values that an operator asks of whole numbers that it is given.
struct ValueRule {
  enum class Kind {
    kNone,
    kAlongAxis,        // positions along an axis of a tensor
    kClassIds,         // positions below a number
    kCoordinates,      // positions whose last axis counts along the first axes of a tensor
    kIndexPerAxis,     // a list of positions, one tensor for each of the first axes
    kSubscript,        // what stands in brackets behind a tensor
    kNonzeroDivisor,   // not 0, where whole numbers are divided
    kSliceAssignment,  // what stands in brackets: no tensors, lists nor new axes; and what is put
                       // there
  };
  Kind kind = Kind::kNone;
  size_t index_argument = 0;    // the argument that holds them
  size_t indexed_argument = 0;  // the tensor, or the number of kClasses
  int axis_argument = -1;       // the argument that is the axis
  int axis = 0;                 // the axis, where none is
  bool from_end = false;        // negative positions count from the end
  int ignored_argument = -1;    // the argument that stands for no position
};

// What is known of whole numbers that an operator makes.
struct RangeRule {
  enum class Kind {
    kUnknown,
    kPreserved,  // they are those of tensors that it is given
    kStacked,    // those of a list of tensors, along an axis of their own
    kIndices,    // places along an axis of the first argument
    kSorted,     // its first result is moved, the second holds places
    kSum,
    kDifference,
    kProduct,
    kQuotient,
    kRemainder,
    kClipped,
  };
  Kind kind = Kind::kUnknown;
  std::vector<size_t> sources;  // of kMoved: the arguments
  size_t axis_argument = 1;     // of places: the argument that is the axis
};

// The range of all numbers of a tensor, or of one column of its last axis, if there are columns.
using LazyRange =
    std::function<std::optional<IntegerRange>(PyObject* tensor, int64_t column, int64_t columns)>;

// The range of all numbers but one of a tensor; of one column of its last axis, if there are
// columns. Nothing if it holds other numbers than these.
std::optional<IntegerRange> range_of_tensor(const phi::DenseTensor& tensor,
                                            std::optional<int64_t> ignored = {}, int64_t column = 0,
                                            int64_t columns = 1);

// Whether what an operator is given has the values that it asks for. `known` returns the memory of
// a tensor that has some, `range_of` says what is known of one that waits.
bool satisfies(const ValueRule& rule, const std::vector<PyObject*>& given,
               const std::function<const phi::DenseTensor*(PyObject*)>& known,
               const LazyRange& range_of);

// What is made of numbers in these ranges, which has this dtype.
std::optional<IntegerRange> combine_ranges(RangeRule::Kind kind, const IntegerRange& one,
                                           const IntegerRange& other);

}  // namespace paddle_ngraph
