#include "core/ov/checked_ops.h"

#include <atomic>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

constexpr int64_t kCheckStepsPerElement = 2;

}  // namespace

void CheckedArithmetic::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  for (size_t i = 0; i < 2; ++i) {
    require(get_input_partial_shape(i).rank().is_static(), "input ", i, " has an open rank");
    require_positions(i, get_input_partial_shape(i).size());
  }
  require(get_input_element_type(0) == get_input_element_type(1), "the inputs differ in type");
  auto shape = get_input_partial_shape(0);
  require(ov::PartialShape::merge_into(shape, get_input_partial_shape(1)),
          "the inputs differ in shape");
  set_output_type(0, ov::element::i32, shape);
}

template <typename Number, typename Function>
void CheckedArithmetic::compute_of(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                                   const Function& function) const {
  require(inputs[0].get_shape() == inputs[1].get_shape(), "the inputs differ in shape");
  const auto* x = inputs[0].data<const Number>();
  const auto* y = inputs[1].data<const Number>();
  auto* out = outputs->front().data<int32_t>();
  std::atomic<bool> fits{true};
  const auto count = static_cast<int64_t>(inputs[0].get_size());
  parallel_ranges(count, kCheckStepsPerElement, [&](int64_t begin, int64_t end) {
    int64_t overflow_bits = 0;  // a single accumulator, so that the loop is vectorized
    for (int64_t i = begin; i < end; ++i) {
      const int64_t value = function(int64_t{x[i]}, int64_t{y[i]});
      out[i] = static_cast<int32_t>(value);
      overflow_bits |= value ^ int64_t{out[i]};
    }
    if (overflow_bits != 0) fits = false;
  });
  if (!fits) report_error(attributes().deferred_errors_id, attributes().error.error());
}

template <typename Function>
void CheckedArithmetic::compute_each(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                                     const Function& function) const {
  if (inputs[0].get_element_type() == ov::element::i64) {
    compute_of<int64_t>(inputs, outputs, function);
  } else {
    compute_of<int32_t>(inputs, outputs, function);
  }
}

// Operands are int32: int64 can represent the result of any of these operations.
void CheckedAdd::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  compute_each(inputs, outputs, [](int64_t x, int64_t y) { return x + y; });
}

void CheckedSubtract::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  compute_each(inputs, outputs, [](int64_t x, int64_t y) { return x - y; });
}

void CheckedMultiply::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  compute_each(inputs, outputs, [](int64_t x, int64_t y) { return x * y; });
}

}  // namespace paddle_ngraph
