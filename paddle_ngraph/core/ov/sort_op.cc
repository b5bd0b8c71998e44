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

// Paddle sorts this many times fewer elements than there are with another algorithm.
constexpr int64_t kPartialSortRatio = 64;

// Comparisons for an element, roughly, to weigh a row against the cost of a thread.
constexpr int64_t kStepsPerElement = 8;

}  // namespace

std::shared_ptr<ov::Node> Sort::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  auto copy = std::make_shared<Sort>(inputs);
  copy->k_ = k_;
  copy->descending_ = descending_;
  copy->stable_ = stable_;
  copy->search_ = search_;
  copy->sorted_ = sorted_;
  copy->constructor_validate_and_infer_types();
  return copy;
}

bool Sort::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("k", k_);
  visitor.on_attribute("descending", descending_);
  visitor.on_attribute("stable", stable_);
  visitor.on_attribute("search", search_);
  visitor.on_attribute("sorted", sorted_);
  return true;
}

void Sort::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  auto shape = get_input_shape(0);
  require(!shape.empty(), "a scalar has no axis to sort");
  require_float(0, shape.size());
  const auto length = static_cast<int64_t>(shape.back());
  require(k_ >= 0 && k_ <= length, "k is ", k_, ", the axis has ", length, " elements");
  require(search_ || k_ == length, "only a search finds fewer elements than there are");
  shape.back() = static_cast<size_t>(k_);
  set_output_type(0, ov::element::f32, shape);
  set_output_type(1, ov::element::i32, shape);
}

template <typename Elements, typename Before>
void Sort::sort(Elements* elements, const Before& before) const {
  const auto begin = elements->begin(), end = elements->end();
  if (!search_) {
    stable_ ? std::stable_sort(begin, end, before) : std::sort(begin, end, before);
  } else if (k_ * kPartialSortRatio < static_cast<int64_t>(elements->size())) {
    std::partial_sort(begin, begin + k_, end, before);
  } else {
    std::nth_element(begin, begin + k_ - 1, end, before);
    if (sorted_) std::sort(begin, begin + k_ - 1, before);
  }
}

void Sort::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  if (outputs->front().get_size() == 0) return;
  const auto length = static_cast<int64_t>(inputs[0].get_shape().back());
  const auto rows = static_cast<int64_t>(inputs[0].get_size()) / length;
  const auto* x = inputs[0].data<const float>();
  auto* values = (*outputs)[0].data<float>();
  auto* positions = (*outputs)[1].data<int32_t>();
  parallel_ranges(rows, length * kStepsPerElement, [&](int64_t first, int64_t last) {
    std::vector<Element> elements(static_cast<size_t>(length));
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < length; ++i) {
        elements[i] = {x[row * length + i], static_cast<int32_t>(i)};
      }
      descending_ ? sort(&elements, is_greater) : sort(&elements, is_less);
      for (int64_t i = 0; i < k_; ++i) {
        values[row * k_ + i] = elements[i].value;
        positions[row * k_ + i] = elements[i].position;
      }
    }
  });
}

}  // namespace paddle_ngraph
