#include "core/ov/check_range_op.h"

#include <algorithm>

#include "core/common/first_out_of_range.h"

namespace paddle_ngraph {

void CheckRange::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(attributes().low.size() == attributes().high.size() && !attributes().low.empty(),
          "needs as many low bounds as high bounds");
  const auto& shape = get_input_partial_shape(0);
  require(shape.rank().is_static(), "input 0 has an open rank");
  require_positions(0, shape.size());
  set_output_type(0, ov::element::i32, shape);
}

template <typename Id>
void CheckRange::check(const Id* ids, size_t count, int32_t* out) const {
  const auto& [low, high, has_ignored, ignored, error, deferred_errors_id] = attributes();
  std::vector<int64_t> allowed;
  if (has_ignored) allowed.push_back(ignored);
  const size_t at = first_out_of_range(ids, count, low, high, allowed);
  std::transform(ids, ids + at, out, [](Id id) { return static_cast<int32_t>(id); });
  if (at == count) return;
  const size_t wrong = at % low.size();
  // A check for overflow reads a mask instead of ids: its elements would mean nothing in the
  // message.
  const bool is_mask = error.code == static_cast<int64_t>(ErrorCode::kInt32Overflow);
  report_error(deferred_errors_id,
               error.error(is_mask ? std::string()
                                   : concat(" Expected ", low[wrong], " <= value < ", high[wrong],
                                            ", but got ", ids[at], ".")));
  for (size_t i = at; i < count; ++i) {
    const size_t n = i % low.size();
    const auto id = static_cast<int64_t>(ids[i]);
    const bool is_ignored = has_ignored && id == ignored;
    out[i] = static_cast<int32_t>(is_ignored ? id : std::max(low[n], std::min(id, high[n] - 1)));
  }
}

void CheckRange::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& ids = inputs.front();
  auto* out = outputs->front().data<int32_t>();
  if (ids.get_element_type() == ov::element::i64) {
    check(ids.data<const int64_t>(), ids.get_size(), out);
  } else {
    check(ids.data<const int32_t>(), ids.get_size(), out);
  }
}

}  // namespace paddle_ngraph
