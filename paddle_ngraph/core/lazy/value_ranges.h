// The ranges of the integers in values of a trace, without computing them.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "core/lazy/trace.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/integer_ranges.h"

namespace paddle_ngraph {

// Whether the arguments of a call, known or lazy, satisfy the rule of its operator.
bool satisfies(const ValueRule& rule, const PyObjects& given, const Trace& trace);

// Ranges of values, each computed at its first use. Known integers are read; lazy ones have a range
// if the operators bound it that compute them.
class ValueRanges {
 public:
  explicit ValueRanges(const Trace& trace) : trace_(trace) {}

  // Nothing if the range is unknown, or exceeds int32.
  std::optional<IntegerRange> of_value(int value);
  // The range of column `column` (of `columns` along the last axis) of an index tensor. If the
  // columns were stacked from separate tensors, the range is that of the column's tensor.
  std::optional<IntegerRange> of_column(int value, int64_t column, int64_t columns);

 private:
  std::optional<IntegerRange> of_result(const TracedCall& call, int value);
  std::optional<IntegerRange> of_indices(const TracedCall& call) const;
  std::optional<IntegerRange> of_clipped(const TracedCall& call);
  std::optional<IntegerRange> of_argument(const Argument& argument);
  // The range of the positional argument at index `at`.
  std::optional<IntegerRange> of_argument(const TracedCall& call, size_t at);

  const Trace& trace_;
  std::unordered_map<int, std::optional<IntegerRange>> known_;
};

}  // namespace paddle_ngraph
