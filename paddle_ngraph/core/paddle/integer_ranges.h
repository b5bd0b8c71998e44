// Ranges of integers: the values that operators require of integer operands, and those of integer
// results.
//
// Lookup operators raise where an index is out of range, or read out of bounds. Such an operator
// may be deferred if that cannot happen: its indices are known, or computed by operators that bound
// them, as argmax is below the size of its axis.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

// Integers from lower to upper, both included; none if upper < lower.
struct IntegerRange {
  int64_t lower;
  int64_t upper;
};

// The smallest range that contains both given ranges.
inline IntegerRange union_of(const IntegerRange& one, const IntegerRange& other) {
  return {std::min(one.lower, other.lower), std::max(one.upper, other.upper)};
}

// A condition on the integer operands of an operator, under which a run cannot fail.
struct ValueRule {
  enum class Kind {
    kNone,
    kAlongAxis,  // valid indices along one axis of the indexed tensor
    kClassIds,   // class ids from 0 to below a bound
    // Coordinates, as of gather_nd: each column of the last axis indexes one of the tensor's first
    // axes.
    kCoordinates,
    kIndexPerAxis,    // a list of index tensors, one for each of the tensor's first axes
    kSubscript,       // the subscript of x[...]
    kNonzeroDivisor,  // a divisor of integers, whose range must be positive
    // The subscript and value of x[...] = value; no new axes in the subscript. A tensor is the
    // whole subscript: a mask of the shape of x, for a number, or indices of rows.
    kSliceAssignment,
  };
  Kind kind = Kind::kNone;
  size_t index_argument = 0;    // number of the argument that contains indices
  size_t indexed_argument = 0;  // number of the argument that is indexed, or that bounds class ids
  int axis_argument = -1;       // number of the argument that is the axis; -1: none
  int axis = 0;                 // the axis, if no argument is the axis
  bool from_end = false;        // whether negative indices are valid, counted from the end
  // Number of the argument that is a valid value out of range (ignore_index); -1: none.
  int ignored_argument = -1;
};

// How to compute the range of an operator's integer results.
struct RangeRule {
  enum class Kind {
    kUnknown,
    kPreserved,  // results contain values of operands
    kStacked,    // the result contains the values of a list of tensors
    kIndices,    // results are indices along an axis of the first argument
    kSorted,     // the first result contains values of the operand, the second one indices
    kSum,
    kDifference,
    kProduct,
    kQuotient,
    kRemainder,
    kClipped,
  };
  Kind kind = Kind::kUnknown;
  // For kPreserved: numbers of the arguments whose values the results contain.
  std::vector<size_t> sources;
  size_t axis_argument = 1;  // for indices: number of the argument that is the axis
};

// The range of all elements of a tensor, or of one column of its last axis, if there are columns.
using LazyRange =
    std::function<std::optional<IntegerRange>(PyObject* tensor, int64_t column, int64_t columns)>;

// The range of all elements of a tensor other than `ignored`, or of one column of its last axis, if
// there are columns. Returns nothing for dtypes other than int64, int32 and bool.
std::optional<IntegerRange> range_of_tensor(const phi::DenseTensor& tensor,
                                            std::optional<int64_t> ignored = {}, int64_t column = 0,
                                            int64_t columns = 1);

// Whether the arguments of an operator satisfy the rule. `known` returns the memory of a
// materialized tensor, `range_of` the known range of a lazy one.
bool satisfies(const ValueRule& rule, const PyObjects& given,
               const std::function<const phi::DenseTensor*(PyObject*)>& known,
               const LazyRange& range_of);

// The range of an operation's results for operands in the ranges `one` and `other`; nothing if
// unknown.
std::optional<IntegerRange> combine_ranges(RangeRule::Kind kind, const IntegerRange& one,
                                           const IntegerRange& other);

}  // namespace paddle_ngraph
