#include "core/ov/bfloat16_op.h"

#include "core/common/bfloat16.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

template <typename From, typename To>
void convert(const ov::TensorVector& inputs, ov::TensorVector* outputs,
             void (*convert_all)(const From*, int64_t, To*)) {
  const auto* from = static_cast<const From*>(inputs[0].data());
  auto* to = static_cast<To*>(outputs->front().data());
  parallel_ranges(static_cast<int64_t>(inputs[0].get_size()), 1, [&](int64_t begin, int64_t end) {
    convert_all(from + begin, end - begin, to + begin);
  });
}

// Rounds `pixels` contiguous pixels of `lanes` floats to bfloat16, and writes them `step` elements
// apart.
template <int64_t kLanes>
NGRAPH_INLINE inline void spread_pixels(const float* from, int64_t pixels, int64_t lanes,
                                        int64_t step, uint16_t* to) {
  const int64_t width = kLanes > 0 ? kLanes : lanes;
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t lane = 0; lane < width; ++lane) {
      uint32_t bits;
      std::memcpy(&bits, from + pixel * width + lane, sizeof(bits));
      to[pixel * step + lane] = static_cast<uint16_t>(nearest_bfloat16(bits));
    }
  }
}

NGRAPH_VECTORIZED void spread(const float* from, int64_t pixels, int64_t lanes, int64_t step,
                              uint16_t* to) {
  if (lanes == 16) {
    spread_pixels<16>(from, pixels, lanes, step, to);
  } else if (lanes == 8) {
    spread_pixels<8>(from, pixels, lanes, step, to);
  } else {
    spread_pixels<0>(from, pixels, lanes, step, to);
  }
}

}  // namespace

void Bfloat16Conversion::infer_from(const ov::element::Type& from, const ov::element::Type& to) {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  require(get_input_element_type(0) == from, "input 0 is ", get_input_element_type(0), ", not ",
          from);
  set_output_type(0, to, get_input_partial_shape(0));
}

void ToBfloat16::infer() { infer_from(ov::element::f32, ov::element::bf16); }

void ToBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  convert<float, uint16_t>(inputs, outputs, round_to_bfloat16);
}

void FromBfloat16::infer() {
  const bool is_wide = get_input_size() == 1 && get_input_element_type(0) == ov::element::f32;
  infer_from(is_wide ? ov::element::f32 : ov::element::bf16, ov::element::f32);
}

void FromBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  if (inputs[0].get_element_type() == ov::element::f32) {
    inputs[0].copy_to(outputs->front());
    return;
  }
  convert<uint16_t, float>(inputs, outputs, widen_bfloat16);
}

void RoundToBfloat16::infer() { infer_from(ov::element::f32, ov::element::f32); }

void RoundToBfloat16::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  convert<float, float>(inputs, outputs, round_as_bfloat16);
}

void ToChannelsLast::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  require_float(0, shape.size());
  require(shape.size() == 4 || shape.size() == 5, "input 0 has rank ", shape.size());
  const size_t channels = shape[1] * (shape.size() == 5 ? shape[4] : 1);
  set_output_type(0, ov::element::bf16, ov::Shape{shape[0], 1, shape[2], shape[3], channels});
}

void ToChannelsLast::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs[0].get_shape();
  const auto at = [&](size_t i) { return static_cast<int64_t>(shape[i]); };
  const int64_t blocks = at(1), rows = at(2), width = at(3), block = shape.size() == 5 ? at(4) : 1;
  const int64_t channels = blocks * block;
  const auto* from = static_cast<const float*>(inputs[0].data());
  auto* to = static_cast<uint16_t*>(outputs->front().data());
  parallel_ranges(at(0) * rows, width * channels, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t sample = line / rows, row = line % rows;
      for (int64_t i = 0; i < blocks; ++i) {
        spread(from + ((sample * blocks + i) * rows + row) * width * block, width, block, channels,
               to + line * width * channels + i * block);
      }
    }
  });
}

}  // namespace paddle_ngraph
