#include "core/ov/batch_norm_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ov/kernels/batch_norm.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

Bounds bounds_of(const Relu& relu) {
  Bounds bounds;
  if (relu.is_on) bounds.low = 0.0F;
  if (relu.is_on && relu.ceiling != 0) {
    bounds.high = static_cast<float>(relu.ceiling);
  }
  return bounds;
}

// At most this number of floats is summed in float32; these sums are added in float64.
constexpr int64_t kChunk = 4096;

// The sizes of data in the layout [batch, blocks, pixels, block], or in [batch, pixels, channels],
// where the blocks of a pixel are adjacent.
struct View {
  int64_t batch = 0;
  int64_t blocks = 0;
  int64_t pixels = 0;
  int64_t block = 0;
  int64_t channels = 0;
  bool is_side_by_side = false;

  int64_t count() const { return batch * pixels; }  // number of elements of a channel
  int64_t chunk_pixels() const { return kChunk / std::clamp<int64_t>(block, 1, kChunk); }
  int64_t chunks_per_sample() const { return (pixels + chunk_pixels() - 1) / chunk_pixels(); }
  int64_t chunks() const { return batch * chunks_per_sample(); }

  // The number of channels in a block; the last block may have fewer than the others.
  int64_t width(int64_t block_index) const {
    return std::min(block, channels - block_index * block);
  }
  // The range of the data for one chunk of a block of channels: the index of its first element, and
  // its extents (pixels, channels and the distance of its rows).
  int64_t begin(int64_t block_index, int64_t chunk) const {
    const int64_t sample = chunk / chunks_per_sample();
    if (is_side_by_side) {
      return (sample * pixels + first_pixel(chunk)) * channels + block_index * block;
    }
    return ((sample * blocks + block_index) * pixels + first_pixel(chunk)) * block;
  }
  ChannelRows rows(int64_t block_index, int64_t chunk) const {
    return {std::min(chunk_pixels(), pixels - first_pixel(chunk)), width(block_index),
            is_side_by_side ? channels : block};
  }

 private:
  int64_t first_pixel(int64_t chunk) const { return chunk % chunks_per_sample() * chunk_pixels(); }
};

View view_of(const ov::Shape& shape) {
  const auto at = [&](size_t i) { return static_cast<int64_t>(shape[i]); };
  const int64_t pixels = shape.size() == 4 ? at(2) : at(2) * at(3);
  const int64_t blocks = at(1), block = at(shape.size() - 1);
  if (blocks == 1 && block > kWidestRows) {
    return {at(0), (block + kWidestRows - 1) / kWidestRows, pixels, kWidestRows, block, true};
  }
  return {at(0), blocks, pixels, block, blocks * block, false};
}

// Number of operations on each element in all passes of a batch normalization, to decide on
// threads.
constexpr double kPasses = 3;

enum NormAxis { kBlocks, kChunks };

// Divides the work on `v` among threads: into blocks of channels, and these into chunks of pixels.
// The later passes over an undivided block find its data in the cache.
Grid grid_of(const View& v, double multiplies) {
  Work work;
  work.multiplies = multiplies;
  work.axes.resize(2);
  work.axes[kBlocks].units = std::max<int64_t>(v.blocks, 1);
  work.axes[kChunks].units = std::max<int64_t>(v.chunks(), 1);
  work.axes[kChunks].is_summed = true;
  work.axes[kChunks].copied_unless = kAlways;
  const auto size = static_cast<double>(v.count() * v.channels);
  work.operands = {{size, along({kBlocks, kChunks})}, {size, along({kBlocks, kChunks})}};
  work.result = {static_cast<double>(v.channels), along({kBlocks}), false};
  const bool is_small = multiplies < static_cast<double>(kStepsPerTask) * kMultipliesPerStep;
  return divide(work, is_small ? 1 : shared_threads());
}

// For every block of channels, calls `reduce` on ranges of chunks of pixels, `finish` on the
// results of the ranges in order, and `apply` on ranges of chunks.
template <typename Partial, typename Reduce, typename Finish, typename Apply>
void reduce_and_apply(const View& v, const Reduce& reduce, const Finish& finish,
                      const Apply& apply) {
  const double multiplies =
      static_cast<double>(v.count() * v.channels) * kPasses * kMultipliesPerStep;
  const Grid grid = grid_of(v, multiplies);
  // Clips the ranges of blocks and chunks of a task, since the grid has at least one of each:
  // without elements there is one empty chunk to finish, without blocks nothing.
  const auto blocks_of = [&](int64_t task) {
    const Range blocks = grid.range(kBlocks, task);
    return Range{std::min(blocks.begin, v.blocks), std::min(blocks.end, v.blocks)};
  };
  const auto chunks_of = [&](int64_t task) {
    const Range chunks = grid.range(kChunks, task);
    return Range{std::min(chunks.begin, v.chunks()), std::min(chunks.end, v.chunks())};
  };
  if (grid.parts(kChunks) == 1) {
    parallel_tasks(grid, multiplies, [&](int64_t task) {
      const Range blocks = blocks_of(task);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) {
        std::vector<Partial> partial(1, Partial(v.block));
        reduce(b, 0, v.chunks(), &partial[0]);
        finish(b, partial);
        apply(b, 0, v.chunks());
      }
    });
    return;
  }
  std::vector<std::vector<Partial>> partials(
      v.blocks, std::vector<Partial>(grid.parts(kChunks), Partial(v.block)));
  const auto each = [&](double share, const auto& body) {
    parallel_tasks(grid, multiplies * share, [&](int64_t task) {
      const Range blocks = blocks_of(task), chunks = chunks_of(task);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) body(task, b, chunks);
    });
  };
  each(2 / kPasses, [&](int64_t task, int64_t b, const Range& chunks) {
    reduce(b, chunks.begin, chunks.end, &partials[b][grid.part(kChunks, task)]);
  });
  for (int64_t b = 0; b < v.blocks; ++b) finish(b, partials[b]);
  each(1 / kPasses,
       [&](int64_t, int64_t b, const Range& chunks) { apply(b, chunks.begin, chunks.end); });
}

// Mean and sum of squared distances of the elements seen so far, for each channel of a block.
struct Moments {
  explicit Moments(int64_t block) : mean(block), square(block) {}

  // Merges the moments of `number` more elements (pairwise update of Chan, Golub and LeVeque).
  template <typename Value>
  void add(int64_t number, const Value* other_mean, const Value* other_square) {
    if (number == 0) return;
    const double total = static_cast<double>(count + number);
    const double weight = static_cast<double>(number) / total;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double distance = other_mean[c] - mean[c];
      mean[c] = count == 0 ? other_mean[c] : mean[c] + distance * weight;
      square[c] += other_square[c];
      if (count > 0) square[c] += distance * distance * weight * static_cast<double>(count);
    }
    count += number;
  }

  std::vector<double> mean, square;
  int64_t count = 0;
};

// For each channel of a block, the sums of grad and of grad * (x - mean).
struct Products {
  explicit Products(int64_t block) : sum(block), product(block) {}

  template <typename Value>
  void add(const Value* other_sum, const Value* other_product) {
    for (size_t c = 0; c < sum.size(); ++c) {
      sum[c] += other_sum[c];
      product[c] += other_product[c];
    }
  }

  std::vector<double> sum, product;
};

}  // namespace

// ---------------------------------------------------------------------------------------------
// BatchNorm

void BatchNorm::infer() {
  require(get_input_size() == 5, "takes 5 inputs, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  require_float(0, shape.size() == 4 ? 4 : 5);
  const ov::Shape channels{static_cast<size_t>(view_of(shape).channels)};
  for (size_t i = 1; i < 5; ++i) {
    require_float(i, 1);
    require(get_input_shape(i) == channels, "input ", i, " must have shape ", channels);
  }
  set_output_type(0, ov::element::f32, shape);
  for (size_t i = 1; i < 5; ++i) set_output_type(i, ov::element::f32, channels);
}

void BatchNorm::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const View v = view_of(inputs[0].get_shape());
  const float* x = inputs[0].data<const float>();
  const auto* scale = inputs[1].data<const float>();
  const auto* bias = inputs[2].data<const float>();
  float* y = (*outputs)[0].data<float>();
  const Bounds bounds = bounds_of(attributes().relu);
  std::vector<float> factor(v.channels), offset(v.channels);
  const auto reduce = [&](int64_t b, int64_t begin, int64_t end, Moments* moments) {
    std::vector<float> mean(v.block), square(v.block);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const float* from = x + v.begin(b, chunk);
      const ChannelRows rows = v.rows(b, chunk);
      if (v.block == 1) {
        row_moments(from, rows.count, mean.data(), square.data());
      } else {
        chunk_moments(from, rows, mean.data(), square.data());
      }
      moments->add(rows.count, mean.data(), square.data());
    }
  };
  const auto finish = [&](int64_t b, const std::vector<Moments>& parts) {
    Moments all(v.block);
    for (const auto& part : parts) all.add(part.count, part.mean.data(), part.square.data());
    // Of an empty batch, the running statistics are not updated, as in Paddle.
    const bool is_empty = v.count() == 0;
    const float decay = is_empty ? 1.0F : static_cast<float>(attributes().momentum),
                update_rate = 1.0F - decay;
    const auto count = static_cast<double>(std::max<int64_t>(1, v.count()));
    for (int64_t i = 0; i < v.width(b); ++i) {
      const int64_t c = b * v.block + i;
      const auto mean = static_cast<float>(all.mean[i]);
      const auto variance = static_cast<float>(all.square[i] / count);
      const float inverse = 1.0F / std::sqrt(variance + static_cast<float>(attributes().epsilon));
      (*outputs)[1].data<float>()[c] =
          inputs[3].data<const float>()[c] * decay + mean * update_rate;
      (*outputs)[2].data<float>()[c] =
          inputs[4].data<const float>()[c] * decay + variance * update_rate;
      (*outputs)[3].data<float>()[c] = mean;
      (*outputs)[4].data<float>()[c] = inverse;
      factor[c] = scale[c] * inverse;
      offset[c] = bias[c] - mean * factor[c];
    }
  };
  const auto apply = [&](int64_t b, int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = v.begin(b, chunk);
      scale_rows(x + at, v.rows(b, chunk), &factor[b * v.block], &offset[b * v.block], bounds,
                 y + at);
    }
  };
  reduce_and_apply<Moments>(v, reduce, finish, apply);
}

// ---------------------------------------------------------------------------------------------
// BatchNormGrad

void BatchNormGrad::infer() {
  const size_t count = attributes().relu.is_on ? 6 : 5;
  require(get_input_size() == count, "takes ", count, " inputs, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  for (size_t i = 0; i < 2; ++i) require_float(i, shape.size() == 4 ? 4 : 5);
  require(get_input_shape(1) == shape, "x and y_grad differ in shape");
  require(!attributes().relu.is_on || get_input_shape(5) == shape, "x and y differ in shape");
  const ov::Shape channels{static_cast<size_t>(view_of(shape).channels)};
  for (size_t i = 2; i < 5; ++i) {
    require_float(i, 1);
    require(get_input_shape(i) == channels, "input ", i, " must have shape ", channels);
  }
  set_output_type(0, ov::element::f32, shape);
  for (size_t i = 1; i < 3; ++i) set_output_type(i, ov::element::f32, channels);
}

void BatchNormGrad::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const View v = view_of(inputs[0].get_shape());
  const float* x = inputs[0].data<const float>();
  const ReluGradient grad{inputs[1].data<const float>(),
                          attributes().relu.is_on ? inputs[5].data<const float>() : nullptr,
                          bounds_of(attributes().relu)};
  const auto* scale = inputs[2].data<const float>();
  const auto* mean = inputs[3].data<const float>();
  const auto* inverse = inputs[4].data<const float>();
  float* x_grad = (*outputs)[0].data<float>();
  std::vector<float> shift(v.channels), factor(v.channels), slope(v.channels);
  const auto reduce = [&](int64_t b, int64_t begin, int64_t end, Products* partial_products) {
    std::vector<float> sum(v.block), product(v.block);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = v.begin(b, chunk);
      const ChannelRows rows = v.rows(b, chunk);
      if (v.block == 1) {
        row_products(x + at, grad.at(at), rows.count, mean[b], sum.data(), product.data());
      } else {
        chunk_products(x + at, grad.at(at), rows, mean + b * v.block, sum.data(), product.data());
      }
      partial_products->add(sum.data(), product.data());
    }
  };
  const auto finish = [&](int64_t b, const std::vector<Products>& parts) {
    Products all(v.block);
    for (const auto& part : parts) all.add(part.sum.data(), part.product.data());
    const auto count = static_cast<float>(v.count());
    for (int64_t i = 0; i < v.width(b); ++i) {
      const int64_t c = b * v.block + i;
      const auto bias_grad = static_cast<float>(all.sum[i]);
      const float scale_grad = static_cast<float>(all.product[i]) * inverse[c];
      (*outputs)[1].data<float>()[c] = scale_grad;
      (*outputs)[2].data<float>()[c] = bias_grad;
      shift[c] = bias_grad / count;
      factor[c] = scale[c] * inverse[c];
      slope[c] = scale_grad * inverse[c] / count;
    }
  };
  const auto apply = [&](int64_t b, int64_t begin, int64_t end) {
    const int64_t c = b * v.block;
    const GradFactors factors{&shift[c], &factor[c], mean + c, &slope[c]};
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = v.begin(b, chunk);
      grad_rows(x + at, grad.at(at), v.rows(b, chunk), factors, x_grad + at);
    }
  };
  reduce_and_apply<Products>(v, reduce, finish, apply);
}

}  // namespace paddle_ngraph
