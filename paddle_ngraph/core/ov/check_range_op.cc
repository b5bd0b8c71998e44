#include "core/ov/check_range_op.h"

#include <algorithm>
#include <atomic>

#include "core/common/first_out_of_range.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

void CheckRange::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(attributes().low.size() == attributes().high.size() && !attributes().low.empty(),
          "needs as many low bounds as high bounds");
  const auto& shape = get_input_partial_shape(0);
  require(shape.rank().is_static(), "input 0 has an open rank");
  if (get_input_element_type(0) == ov::element::f32) {
    require(attributes().low.size() == 1 && !attributes().has_ignored,
            "has one range for what is not whole");
  } else {
    require_positions(0, shape.size());
  }
  set_output_type(0, ov::element::i32, shape);
}

template <typename Id>
void CheckRange::check(const Id* ids, size_t count, int32_t* out) const {
  const auto& [low, high, has_ignored, ignored, message, findings] = attributes();
  std::vector<int64_t> allowed;
  if (has_ignored) allowed.push_back(ignored);
  const size_t at = first_out_of_range(ids, count, low, high, allowed);
  std::transform(ids, ids + at, out, [](Id id) { return static_cast<int32_t>(id); });
  if (at == count) return;
  const size_t wrong = at % low.size();
  refuse(findings, concat(message, " Expected ", low[wrong], " <= value < ", high[wrong],
                          ", but got ", ids[at], "."));
  for (size_t i = at; i < count; ++i) {
    const size_t n = i % low.size();
    const auto id = static_cast<int64_t>(ids[i]);
    const bool is_ignored = has_ignored && id == ignored;
    out[i] = static_cast<int32_t>(is_ignored ? id : std::max(low[n], std::min(id, high[n] - 1)));
  }
}

// Of what is not whole, the whole number that is nearer to 0. Comparisons are exact in double.
void CheckRange::check_floats(const float* numbers, size_t count, int32_t* out) const {
  const double low = static_cast<double>(attributes().low.front()) - 1;
  const auto high = static_cast<double>(attributes().high.front());
  std::atomic<bool> fits{true};
  parallel_ranges(static_cast<int64_t>(count), 2, [&](int64_t begin, int64_t end) {
    int wrong = 0;
    for (int64_t i = begin; i < end; ++i) {
      const double number = numbers[i];
      const bool is_inside = number > low && number < high;  // which no NaN is
      out[i] = static_cast<int32_t>(is_inside ? number : low + 1);
      wrong |= is_inside ? 0 : 1;
    }
    if (wrong != 0) fits = false;
  });
  if (fits) return;
  const float* found = std::find_if(numbers, numbers + count,
                                    [&](float each) { return !(each > low && each < high); });
  refuse(attributes().findings,
         concat(attributes().message, " Expected ", attributes().low.front(), " <= value < ",
                attributes().high.front(), ", but got ", *found, "."));
}

void CheckRange::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& ids = inputs.front();
  auto* out = outputs->front().data<int32_t>();
  if (ids.get_element_type() == ov::element::f32) {
    check_floats(ids.data<const float>(), ids.get_size(), out);
  } else if (ids.get_element_type() == ov::element::i64) {
    check(ids.data<const int64_t>(), ids.get_size(), out);
  } else {
    check(ids.data<const int32_t>(), ids.get_size(), out);
  }
}

}  // namespace paddle_ngraph
