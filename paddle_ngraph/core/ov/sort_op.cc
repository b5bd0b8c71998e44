#include "core/ov/sort_op.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

struct Element {
  float value;
  int32_t position;
};

bool is_less(const Element& left, const Element& right) {
  return left.value < right.value || (!std::isnan(left.value) && std::isnan(right.value));
}

bool is_greater(const Element& left, const Element& right) {
  return left.value > right.value || (std::isnan(left.value) && !std::isnan(right.value));
}

// Paddle sorts by another algorithm if k times this number is less than the number of elements.
constexpr int64_t kPartialSortRatio = 64;

// Approximate number of comparisons for each element that is sorted, to estimate whether sorting a
// row is worth a thread.
constexpr int64_t kSortStepsPerElement = 8;

}  // namespace

void Sort::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  auto shape = get_input_shape(0);
  require(!shape.empty(), "a scalar has no axis to sort");
  require_float(0, shape.size());
  const auto length = static_cast<int64_t>(shape.back());
  require(attributes().k >= 0 && attributes().k <= length, "k is ", attributes().k,
          ", the axis has ", length, " elements");
  require(attributes().search || attributes().k == length,
          "only a search finds fewer elements than there are");
  shape.back() = static_cast<size_t>(attributes().k);
  set_output_type(0, ov::element::f32, shape);
  set_output_type(1, ov::element::i32, shape);
}

template <typename Elements, typename Before>
void Sort::sort(Elements* elements, const Before& before) const {
  const auto begin = elements->begin(), end = elements->end();
  if (!attributes().search) {
    attributes().stable ? std::stable_sort(begin, end, before) : std::sort(begin, end, before);
  } else if (attributes().k * kPartialSortRatio < static_cast<int64_t>(elements->size())) {
    std::partial_sort(begin, begin + attributes().k, end, before);
  } else {
    std::nth_element(begin, begin + attributes().k - 1, end, before);
    if (attributes().sorted) std::sort(begin, begin + attributes().k - 1, before);
  }
}

void Sort::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  if (outputs->front().get_size() == 0) return;
  const auto length = static_cast<int64_t>(inputs[0].get_shape().back());
  const auto rows = static_cast<int64_t>(inputs[0].get_size()) / length;
  const auto* x = inputs[0].data<const float>();
  auto* values = (*outputs)[0].data<float>();
  auto* positions = (*outputs)[1].data<int32_t>();
  parallel_ranges(rows, length * kSortStepsPerElement, [&](int64_t first, int64_t last) {
    std::vector<Element> elements(static_cast<size_t>(length));
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < length; ++i) {
        elements[i] = {x[row * length + i], static_cast<int32_t>(i)};
      }
      attributes().descending ? sort(&elements, is_greater) : sort(&elements, is_less);
      for (int64_t i = 0; i < attributes().k; ++i) {
        values[row * attributes().k + i] = elements[i].value;
        positions[row * attributes().k + i] = elements[i].position;
      }
    }
  });
}

}  // namespace paddle_ngraph
