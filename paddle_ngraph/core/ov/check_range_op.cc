#include "core/ov/check_range_op.h"

namespace paddle_ngraph {

std::shared_ptr<ov::Node> CheckRange::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  auto copy = std::make_shared<CheckRange>(inputs);
  copy->low_ = low_;
  copy->high_ = high_;
  copy->has_ignored_ = has_ignored_;
  copy->ignored_ = ignored_;
  copy->message_ = message_;
  copy->constructor_validate_and_infer_types();
  return copy;
}

bool CheckRange::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("low", low_);
  visitor.on_attribute("high", high_);
  visitor.on_attribute("has_ignored", has_ignored_);
  visitor.on_attribute("ignored", ignored_);
  visitor.on_attribute("message", message_);
  return true;
}

void CheckRange::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(low_.size() == high_.size() && !low_.empty(), "takes as many low as high bounds");
  const auto& shape = get_input_partial_shape(0);
  require(shape.rank().is_static(), "input 0 has an open rank");
  require_positions(0, shape.size());
  set_output_type(0, ov::element::i32, shape);
}

template <typename Id>
void CheckRange::check(const Id* ids, size_t count, int32_t* out) const {
  const size_t bounds = low_.size();
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<int64_t>(ids[i]);
    const size_t n = bounds == 1 ? 0 : i % bounds;
    if ((id < low_[n] || id >= high_[n]) && !(has_ignored_ && id == ignored_)) {
      throw InvalidInput(mark_invalid_input(concat(message_, " Expected ", low_[n], " <= value < ",
                                                   high_[n], ", but got ", id, ".")));
    }
    out[i] = static_cast<int32_t>(id);
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
