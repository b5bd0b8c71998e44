#include "core/ov/reorder_op.h"

#include <algorithm>

#include "core/ov/channel_blocks.h"
#include "core/ov/kernels/reorder.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

int64_t BlockedReorder::channels_of(const ov::Shape& shape) const {
  if (attributes().channels > 0) return attributes().channels;
  return static_cast<int64_t>(shape[1] * (shape.size() == 5 ? shape[4] : 1));
}

void BlockedReorder::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  require_float(0, shape.size());
  require(shape.size() == 4 || shape.size() == 5, "input 0 has rank ", shape.size());
  require(attributes().block > 0, "blocks of ", attributes().block, " channels");
  const int64_t channels = channels_of(shape);
  const auto from_block = static_cast<int64_t>(shape.size() == 5 ? shape[4] : 1);
  require(from_block > 0, "input 0 has blocks of no channels");
  require(blocks_of(channels, from_block) == static_cast<int64_t>(shape[1]), "input ", shape,
          " does not hold ", channels, " channels");
  ov::Shape result = shape;
  result.resize(4);
  result[1] = static_cast<size_t>(blocks_of(channels, attributes().block));
  if (attributes().block > 1) result.push_back(static_cast<size_t>(attributes().block));
  set_output_type(0, ov::element::f32, result);
}

void BlockedReorder::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs[0].get_shape();
  const int64_t from_block = shape.size() == 5 ? static_cast<int64_t>(shape[4]) : 1;
  const int64_t channels = channels_of(shape);
  const int64_t wider_block = std::max(from_block, attributes().block);
  const auto pixels = static_cast<int64_t>(shape[2] * shape[3]);
  // The channels are reordered in steps of the wider block: each step begins a block on both sides.
  const int64_t steps = blocks_of(channels, wider_block);
  const int64_t from_sample = blocks_of(channels, from_block) * from_block * pixels;
  const int64_t to_sample = blocks_of(channels, attributes().block) * attributes().block * pixels;
  const auto reorder_slice = [&](int64_t at) {
    const int64_t sample = at / steps, first = at % steps * wider_block;
    const int64_t count = std::min(wider_block, channels - first);
    const float* from = inputs[0].data<const float>() + sample * from_sample + first * pixels;
    float* to = outputs->front().data<float>() + sample * to_sample + first * pixels;
    if (from_block == 1) {
      gather_channels(from, {pixels, count, attributes().block}, to);
    } else if (attributes().block == 1) {
      scatter_channels(from, {pixels, count, from_block}, to);
    } else {
      regroup_channels(from, from_block, {pixels, count, attributes().block}, to);
    }
    if (count % attributes().block != 0) {
      clear_lanes(to + count / attributes().block * attributes().block * pixels, pixels,
                  attributes().block, count % attributes().block);
    }
  };
  const auto count = static_cast<int64_t>(shape[0]) * steps;
  parallel_ranges(count, pixels * wider_block, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) reorder_slice(at);
  });
}

}  // namespace paddle_ngraph
