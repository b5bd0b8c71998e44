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

namespace paddle_ngraph {

// A closed interval [lower, upper]; empty if upper < lower.
struct IntegerRange {
  int64_t lower;
  int64_t upper;
};

// The smallest range that contains both ranges.
inline IntegerRange union_of(const IntegerRange& one, const IntegerRange& other) {
  return {std::min(one.lower, other.lower), std::max(one.upper, other.upper)};
}

// The values that an operator requires of its integer operands.
struct ValueRule {
  enum class Kind {
    kNone,
    kAlongAxis,        // valid indices along one axis of the indexed tensor
    kClassIds,         // class ids below a bound
    kCoordinates,      // coordinates (as of gather_nd): the last axis indexes the first axes of a
                       // tensor
    kIndexPerAxis,     // a list of index tensors, one for each of the first axes
    kSubscript,        // a subscript, x[...]
    kNonzeroDivisor,   // a positive divisor of integers
    kSliceAssignment,  // x[...] = value, without tensors, lists or new axes in the subscript; and
                       // the value there
  };
  Kind kind = Kind::kNone;
  size_t index_argument = 0;    // the argument with the indices
  size_t indexed_argument = 0;  // the indexed tensor, or the bound of kClassIds
  int axis_argument = -1;       // the argument with the axis
  int axis = 0;                 // the axis, if no argument has it
  bool from_end = false;        // whether negative indices count from the end
  // the argument whose value is ignored among the indices (ignore_index)
  int ignored_argument = -1;
};

// The known range of the integers that an operator computes.
struct RangeRule {
  enum class Kind {
    kUnknown,
    kPreserved,  // the values of operands
    kStacked,    // the values of a list of tensors, stacked along a new axis
    kIndices,    // indices along an axis of the first argument
    kSorted,     // the first result is a permutation of the values, the second contains indices
    kSum,
    kDifference,
    kProduct,
    kQuotient,
    kRemainder,
    kClipped,
  };
  Kind kind = Kind::kUnknown;
  std::vector<size_t> sources;  // for kPreserved: the arguments whose values are preserved
  size_t axis_argument = 1;     // for indices: the argument with the axis
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
bool satisfies(const ValueRule& rule, const std::vector<PyObject*>& given,
               const std::function<const phi::DenseTensor*(PyObject*)>& known,
               const LazyRange& range_of);

// The range of the results of an operation, if its operands are in these ranges.
std::optional<IntegerRange> combine_ranges(RangeRule::Kind kind, const IntegerRange& one,
                                           const IntegerRange& other);

}  // namespace paddle_ngraph
