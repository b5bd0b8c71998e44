#include "core/ov/division_ops.h"

#include <algorithm>
#include <cmath>

#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// Cost of one fmod, in elementary steps, to decide on threads.
constexpr int64_t kDivisionStepsPerElement = 16;

float remainder_of(float x, float y) {
  const float rest = std::fmod(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

float quotient_of(float x, float y) {
  if (y == 0) return x / y;
  const float rest = std::fmod(x, y);
  const float quotient = (x - rest) / y - (rest != 0 && (rest < 0) != (y < 0) ? 1.0f : 0.0f);
  if (quotient == 0) return std::copysign(0.0f, x / y);
  const float floored =
      // The quotient is rounded to the nearest integer: the division may have rounded it away from
      // an integer.
      std::floor(quotient);
  return quotient - floored > 0.5f ? floored + 1.0f : floored;
}

// Python's remainder. In int64, since INT32_MIN / -1 overflows int32; the result is converted back
// modulo 2^32.
int32_t remainder_of(int32_t x, int32_t y) {
  const int64_t rest = int64_t{x} % y;
  return static_cast<int32_t>(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}

int32_t quotient_of(int32_t x, int32_t y) {
  const int64_t rest = int64_t{x} % y;
  const int64_t quotient = int64_t{x} / y;
  return static_cast<int32_t>(rest != 0 && (rest < 0) != (y < 0) ? quotient - 1 : quotient);
}

template <typename Number, typename Function>
void for_each(const ov::TensorVector& inputs, ov::TensorVector* outputs, const Function& function) {
  const auto* x = inputs[0].data<const Number>();
  const auto* y = inputs[1].data<const Number>();
  auto* out = outputs->front().data<Number>();
  const auto count = static_cast<int64_t>(inputs[0].get_size());
  parallel_ranges(count, kDivisionStepsPerElement, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = function(x[i], y[i]);
  });
}

}  // namespace

void FlooredDivision::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  const auto type = get_input_element_type(0);
  require(type == ov::element::f32 || type == ov::element::i32, "input 0 is ", type,
          ", not f32 or i32");
  require(get_input_element_type(1) == type, "the inputs differ in type");
  auto shape = get_input_partial_shape(0);
  require(ov::PartialShape::merge_into(shape, get_input_partial_shape(1)),
          "the inputs differ in shape");
  set_output_type(0, type, shape);
}

template <typename Float, typename Integer>
void FlooredDivision::compute_each(const ov::TensorVector& inputs, ov::TensorVector* outputs,
                                   const Float& of_floats, const Integer& of_integers) const {
  require(inputs[0].get_shape() == inputs[1].get_shape(), "the inputs differ in shape");
  if (inputs[0].get_element_type() == ov::element::f32) {
    return for_each<float>(inputs, outputs, of_floats);
  }
  const auto* y = inputs[1].data<const int32_t>();
  if (std::find(y, y + inputs[1].get_size(), 0) != y + inputs[1].get_size()) {
    report_error(
        attributes().deferred_errors_id,
        InvalidInput(concat(get_type_name(),
                            ": an integer is divided by zero; the divisor must not be 0.")));
  }
  for_each<int32_t>(inputs, outputs,
                    [&](int32_t a, int32_t b) { return b == 0 ? 0 : of_integers(a, b); });
}

void FloorDivide::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  compute_each(
      inputs, outputs, [](float x, float y) { return quotient_of(x, y); },
      [](int32_t x, int32_t y) { return quotient_of(x, y); });
}

void Remainder::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  compute_each(
      inputs, outputs, [](float x, float y) { return remainder_of(x, y); },
      [](int32_t x, int32_t y) { return remainder_of(x, y); });
}

}  // namespace paddle_ngraph
