#include "reblock_op.h"

#include <algorithm>

#include "../vectorized.h"
#include "parallel.h"

namespace paddle_ngraph {

namespace {

// Positions copied at a time: what they take of both layouts stays in the first cache.
constexpr int64_t kTile = 64;

// to[position][channel] = from[channel][position], for the channels of one block.
NGRAPH_VECTORIZED void gather_channels(const float* from, int64_t places, int64_t block,
                                       float* to) {
  for (int64_t start = 0; start < places; start += kTile) {
    const int64_t end = start + kTile < places ? start + kTile : places;
    for (int64_t channel = 0; channel < block; ++channel) {
      const float* row = from + channel * places;
      for (int64_t at = start; at < end; ++at) to[at * block + channel] = row[at];
    }
  }
}

// to[channel][position] = from[position][channel].
NGRAPH_VECTORIZED void scatter_channels(const float* from, int64_t places, int64_t block,
                                        float* to) {
  for (int64_t start = 0; start < places; start += kTile) {
    const int64_t end = start + kTile < places ? start + kTile : places;
    for (int64_t channel = 0; channel < block; ++channel) {
      float* row = to + channel * places;
      for (int64_t at = start; at < end; ++at) row[at] = from[at * block + channel];
    }
  }
}

// Both sides blocked: the channels of the wider block, `narrow` at a time.
void regroup(const float* from, int64_t places, int64_t from_block, int64_t to_block, float* to) {
  const int64_t wide = std::max(from_block, to_block);
  for (int64_t channel = 0; channel < wide; ++channel) {
    const float* source = from + channel / from_block * places * from_block + channel % from_block;
    float* target = to + channel / to_block * places * to_block + channel % to_block;
    for (int64_t at = 0; at < places; ++at) target[at * to_block] = source[at * from_block];
  }
}

}  // namespace

std::shared_ptr<ov::Node> Reblock::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<Reblock>(inputs, block_);
}

bool Reblock::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("block", block_);
  return true;
}

void Reblock::infer() {
  require(get_input_size() == 1, "takes 1 input, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  require_float(0, shape.size());
  require(shape.size() == 4 || shape.size() == 5, "input 0 has rank ", shape.size());
  const size_t channels = shape[1] * (shape.size() == 5 ? shape[4] : 1);
  require(block_ > 0 && channels % static_cast<size_t>(block_) == 0, channels,
          " channels do not divide into blocks of ", block_);
  const auto block = static_cast<size_t>(block_);
  ov::Shape result{shape[0], channels / block, shape[2], shape[3]};
  if (block > 1) result.push_back(block);
  set_output_type(0, ov::element::f32, result);
}

void Reblock::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto& shape = inputs[0].get_shape();
  const int64_t from_block = shape.size() == 5 ? static_cast<int64_t>(shape[4]) : 1;
  const int64_t wide = std::max(from_block, block_);
  const auto places = static_cast<int64_t>(shape[2] * shape[3]);
  const auto count = static_cast<int64_t>(inputs[0].get_size()) / std::max<int64_t>(1, places * wide);
  const float* from = inputs[0].data<const float>();
  float* to = outputs->front().data<float>();
  parallel_ranges(count, places * wide, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t offset = at * places * wide;
      if (from_block == 1) {
        gather_channels(from + offset, places, block_, to + offset);
      } else if (block_ == 1) {
        scatter_channels(from + offset, places, from_block, to + offset);
      } else {
        regroup(from + offset, places, from_block, block_, to + offset);
      }
    }
  });
}

}  // namespace paddle_ngraph
