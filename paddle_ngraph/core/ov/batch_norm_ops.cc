#include "core/ov/batch_norm_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/common/vectorized.h"
#include "core/ov/parallel.h"
#include "core/ov/row_sums.h"

namespace paddle_ngraph {

namespace {

// Floats summed up in float32 at a time; such sums are added up in float64.
constexpr int64_t kChunk = 4096;

// Data as [batch, blocks, places, block].
struct View {
  int64_t batch = 0;
  int64_t blocks = 0;
  int64_t places = 0;
  int64_t block = 0;

  int64_t channels() const { return blocks * block; }
  int64_t count() const { return batch * places; }  // elements of a channel
  int64_t chunk_places() const { return kChunk / std::clamp<int64_t>(block, 1, kChunk); }
  int64_t chunks_per_sample() const { return (places + chunk_places() - 1) / chunk_places(); }
  int64_t chunks() const { return batch * chunks_per_sample(); }

  // The places of one chunk of a block of channels: where they begin, and how many they are.
  int64_t begin(int64_t block_index, int64_t chunk) const {
    const int64_t sample = chunk / chunks_per_sample();
    return ((sample * blocks + block_index) * places + first_place(chunk)) * block;
  }
  int64_t first_place(int64_t chunk) const { return chunk % chunks_per_sample() * chunk_places(); }
  int64_t size(int64_t chunk) const {
    return std::min(chunk_places(), places - first_place(chunk));
  }
};

View view_of(const ov::Shape& shape) {
  const auto at = [&](size_t i) { return static_cast<int64_t>(shape[i]); };
  if (shape.size() == 4) return {at(0), at(1), at(2), at(3)};
  return {at(0), at(1), at(2) * at(3), at(4)};
}

// Calls body(term index modulo lanes, position) for `places` rows of kBlock floats.
template <int64_t kBlock, typename Body>
NGRAPH_INLINE inline void each_row(int64_t places, int64_t block, const Body& body) {
  const int64_t width = kBlock > 0 ? kBlock : block;
  for (int64_t place = 0; place < places; ++place) {
    for (int64_t lane = 0; lane < width; ++lane) body(lane, place * width + lane);
  }
}

// A number for each channel of a block; copied, so that no loop could write to it.
template <int64_t kBlock>
class PerLane {
 public:
  explicit PerLane(const float* values) { std::copy_n(values, kBlock, values_); }
  float operator[](int64_t lane) const { return values_[lane]; }

 private:
  float values_[kBlock];
};

template <>
class PerLane<0> {
 public:
  explicit PerLane(const float* values) : values_(values) {}
  float operator[](int64_t lane) const { return values_[lane]; }

 private:
  const float* values_;
};

// Calls function(size of a block) with the usual sizes as constants; 0: any other.
template <typename Function>
NGRAPH_INLINE inline void with_block(int64_t block, const Function& function) {
  if (block == 1) {
    function(std::integral_constant<int64_t, 1>{});
  } else if (block == 8) {
    function(std::integral_constant<int64_t, 8>{});
  } else if (block == 16) {
    function(std::integral_constant<int64_t, 16>{});
  } else {
    function(std::integral_constant<int64_t, 0>{});
  }
}

// sum[lane] of x - shift[lane], and of its square if asked for.
template <int64_t kBlock>
NGRAPH_INLINE inline void moments_of(const float* x, int64_t places, int64_t block, float* mean,
                                     float* square) {
  constexpr int64_t kWidth = kBlock > 0 ? kBlock : 1;
  if constexpr (kBlock > 0) {
    float sum[kWidth] = {}, total[kWidth] = {};
    each_row<kBlock>(places, block,
                     [&](int64_t lane, int64_t i) NGRAPH_INLINE { sum[lane] += x[i]; });
    for (int64_t lane = 0; lane < kWidth; ++lane) sum[lane] /= static_cast<float>(places);
    each_row<kBlock>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float distance = x[i] - sum[lane];
      total[lane] += distance * distance;
    });
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      mean[lane] = sum[lane];
      square[lane] = total[lane];
    }
  } else {
    for (int64_t lane = 0; lane < block; ++lane) mean[lane] = square[lane] = 0.0F;
    each_row<0>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE { mean[lane] += x[i]; });
    for (int64_t lane = 0; lane < block; ++lane) mean[lane] /= static_cast<float>(places);
    each_row<0>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float distance = x[i] - mean[lane];
      square[lane] += distance * distance;
    });
  }
}

// Mean and sum of squared distances from it, of each channel of a chunk.
NGRAPH_VECTORIZED void chunk_moments(const float* x, int64_t places, int64_t block, float* mean,
                                     float* square) {
  with_block(block,
             [&](auto size) NGRAPH_INLINE { moments_of<size>(x, places, block, mean, square); });
}

NGRAPH_VECTORIZED void row_moments(const float* x, int64_t places, float* mean, float* square) {
  const float sum = sum_of(places, [=](int64_t i) NGRAPH_INLINE { return x[i]; });
  const float middle = sum / static_cast<float>(places);
  *square =
      sum_of(places, [=](int64_t i) NGRAPH_INLINE { return (x[i] - middle) * (x[i] - middle); });
  *mean = middle;
}

// The bounds of a rectifier. NaN: none, as no comparison with it holds.
struct Bounds {
  explicit Bounds(const Rectifier& rectifier) {
    if (rectifier.is_on) low = 0.0F;
    if (rectifier.is_on && rectifier.ceiling != 0) high = static_cast<float>(rectifier.ceiling);
  }

  float low = std::numeric_limits<float>::quiet_NaN();
  float high = std::numeric_limits<float>::quiet_NaN();
};

// Calls function(rectify). As in native Paddle, a NaN becomes 0 without a ceiling, and stays with
// one.
template <typename Function>
NGRAPH_INLINE inline void with_rectifier(const Bounds& bounds, const Function& function) {
  const float low = bounds.low, high = bounds.high;
  if (std::isnan(low)) {
    function([](float value) NGRAPH_INLINE { return value; });
  } else if (std::isnan(high)) {
    function([=](float value) NGRAPH_INLINE { return value > low ? value : low; });
  } else {
    function([=](float value) NGRAPH_INLINE {
      value = value < low ? low : value;
      return value > high ? high : value;
    });
  }
}

// y = x * factor + offset, rectified.
NGRAPH_VECTORIZED void scale_rows(const float* x, int64_t places, int64_t block,
                                  const float* factor, const float* offset, const Bounds& bounds,
                                  float* y) {
  with_rectifier(bounds, [&](const auto& rectify) NGRAPH_INLINE {
    with_block(block, [&](auto size) NGRAPH_INLINE {
      const PerLane<size> factors(factor), offsets(offset);
      each_row<size>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
        y[i] = rectify(x[i] * factors[lane] + offsets[lane]);
      });
    });
  });
}

// The gradient behind the rectifier: that of y, times one or zero.
struct Gradient {
  const float* grad;
  const float* y;  // nullptr: not rectified
  Bounds bounds;

  Gradient at(int64_t offset) const { return {grad + offset, y ? y + offset : nullptr, bounds}; }
};

// Calls function(value), where value(i) is element i of the gradient.
template <typename Function>
NGRAPH_INLINE inline void with_gradient(const Gradient& g, const Function& function) {
  const float* grad = g.grad;
  const float* y = g.y;
  const float low = g.bounds.low, high = g.bounds.high;
  if (y == nullptr) {
    function([=](int64_t i) NGRAPH_INLINE { return grad[i]; });
  } else {
    function([=](int64_t i) NGRAPH_INLINE {
      return grad[i] * ((y[i] > low) & !(y[i] >= high) ? 1.0F : 0.0F);
    });
  }
}

template <int64_t kBlock, typename Value>
NGRAPH_INLINE inline void products_of(const float* x, const Value& grad, int64_t places,
                                      int64_t block, const float* mean, float* sum,
                                      float* product) {
  if constexpr (kBlock > 0) {
    float sums[kBlock] = {}, products[kBlock] = {}, middle[kBlock];
    for (int64_t lane = 0; lane < kBlock; ++lane) middle[lane] = mean[lane];
    // Two passes over what lies in the cache: sums of both in one are not vectorized.
    each_row<kBlock>(places, block,
                     [&](int64_t lane, int64_t i) NGRAPH_INLINE { sums[lane] += grad(i); });
    each_row<kBlock>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      products[lane] += grad(i) * (x[i] - middle[lane]);
    });
    for (int64_t lane = 0; lane < kBlock; ++lane) {
      sum[lane] = sums[lane];
      product[lane] = products[lane];
    }
  } else {
    for (int64_t lane = 0; lane < block; ++lane) sum[lane] = product[lane] = 0.0F;
    each_row<0>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
      const float value = grad(i);
      sum[lane] += value;
      product[lane] += value * (x[i] - mean[lane]);
    });
  }
}

// The sums of grad and of grad * (x - mean), of each channel of a chunk.
NGRAPH_VECTORIZED void chunk_products(const float* x, const Gradient& g, int64_t places,
                                      int64_t block, const float* mean, float* sum,
                                      float* product) {
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    with_block(block, [&](auto size) NGRAPH_INLINE {
      products_of<size>(x, grad, places, block, mean, sum, product);
    });
  });
}

// The same of a single channel.
NGRAPH_VECTORIZED void row_products(const float* x, const Gradient& g, int64_t places, float mean,
                                    float* sum, float* product) {
  const int64_t even = places / kLanes * kLanes;
  float means[kLanes], sums[kLanes], products[kLanes];
  for (float& lane : means) lane = mean;
  *sum = *product = 0.0F;
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    products_of<kLanes>(x, grad, even / kLanes, kLanes, means, sums, products);
    for (int64_t i = even; i < places; ++i) {
      *sum += grad(i);
      *product += grad(i) * (x[i] - mean);
    }
  });
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    *sum += sums[lane];
    *product += products[lane];
  }
}

// x_grad = ((grad - shift) - (x - mean) * slope) * factor: an infinite scale times a finite number,
// as in native Paddle, and no difference of infinities.
struct GradFactors {
  const float* shift;
  const float* factor;
  const float* mean;
  const float* slope;
};

NGRAPH_VECTORIZED void grad_rows(const float* x, const Gradient& g, int64_t places, int64_t block,
                                 const GradFactors& f, float* x_grad) {
  with_gradient(g, [&](const auto& grad) NGRAPH_INLINE {
    with_block(block, [&](auto size) NGRAPH_INLINE {
      const PerLane<size> shift(f.shift), factor(f.factor), mean(f.mean), slope(f.slope);
      each_row<size>(places, block, [&](int64_t lane, int64_t i) NGRAPH_INLINE {
        x_grad[i] = (grad(i) - shift[lane] - (x[i] - mean[lane]) * slope[lane]) * factor[lane];
      });
    });
  });
}

// Runs, for every block of channels, `reduce` over ranges of chunks, `finish` on what the ranges
// gave, and `apply` over ranges of chunks. A block is the work of one thread if there are enough of
// them: its data is then still in the cache when `apply` reads it.
template <typename Partial, typename Reduce, typename Finish, typename Apply>
void reduce_and_apply(const View& v, const Reduce& reduce, const Finish& finish,
                      const Apply& apply) {
  const int64_t threads = tbb::this_task_arena::max_concurrency();
  if (v.blocks >= threads) {
    parallel_ranges(v.blocks, v.count() * v.block, [&](int64_t begin, int64_t end) {
      std::vector<Partial> partial(1, Partial(v.block));
      for (int64_t b = begin; b < end; ++b) {
        partial[0] = Partial(v.block);
        reduce(b, 0, v.chunks(), &partial[0]);
        finish(b, partial);
        apply(b, 0, v.chunks());
      }
    });
    return;
  }
  const int64_t shares = std::clamp<int64_t>(v.chunks(), 1, threads);
  const auto in_shares = [&](const auto& body) {
    parallel_ranges(shares, v.count() * v.block / shares, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        body(i, v.chunks() * i / shares, v.chunks() * (i + 1) / shares);
      }
    });
  };
  for (int64_t b = 0; b < v.blocks; ++b) {
    std::vector<Partial> partials(shares, Partial(v.block));
    in_shares([&](int64_t i, int64_t begin, int64_t end) { reduce(b, begin, end, &partials[i]); });
    finish(b, partials);
    in_shares([&](int64_t, int64_t begin, int64_t end) { apply(b, begin, end); });
  }
}

// Mean and sum of squared distances of the elements seen so far, for each channel of a block.
struct Moments {
  explicit Moments(int64_t block) : mean(block), square(block) {}

  // Takes in `number` elements more (Chan, Golub and LeVeque's pairwise update).
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

// Sums of grad and of grad * (x - mean).
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

std::shared_ptr<ov::Node> BatchNorm::clone_with_new_inputs(const ov::OutputVector& inputs) const {
  return std::make_shared<BatchNorm>(inputs, epsilon_, momentum_, rectifier_);
}

bool BatchNorm::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("epsilon", epsilon_);
  visitor.on_attribute("momentum", momentum_);
  visitor.on_attribute("rectified", rectifier_.is_on);
  visitor.on_attribute("ceiling", rectifier_.ceiling);
  return true;
}

void BatchNorm::infer() {
  require(get_input_size() == 5, "takes 5 inputs, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  require_float(0, shape.size() == 4 ? 4 : 5);
  const ov::Shape channels{static_cast<size_t>(view_of(shape).channels())};
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
  const Bounds bounds(rectifier_);
  std::vector<float> factor(v.channels()), offset(v.channels());
  const auto reduce = [&](int64_t b, int64_t begin, int64_t end, Moments* moments) {
    std::vector<float> mean(v.block), square(v.block);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const float* from = x + v.begin(b, chunk);
      if (v.block == 1) {
        row_moments(from, v.size(chunk), mean.data(), square.data());
      } else {
        chunk_moments(from, v.size(chunk), v.block, mean.data(), square.data());
      }
      moments->add(v.size(chunk), mean.data(), square.data());
    }
  };
  const auto finish = [&](int64_t b, const std::vector<Moments>& parts) {
    Moments all(v.block);
    for (const auto& part : parts) all.add(part.count, part.mean.data(), part.square.data());
    const bool is_empty = v.count() == 0;  // moves no statistics, as in native Paddle
    const float kept = is_empty ? 1.0F : static_cast<float>(momentum_), moved = 1.0F - kept;
    const auto count = static_cast<double>(std::max<int64_t>(1, v.count()));
    for (int64_t i = 0; i < v.block; ++i) {
      const int64_t c = b * v.block + i;
      const auto mean = static_cast<float>(all.mean[i]);
      const auto variance = static_cast<float>(all.square[i] / count);
      const float inverse = 1.0F / std::sqrt(variance + static_cast<float>(epsilon_));
      (*outputs)[1].data<float>()[c] = inputs[3].data<const float>()[c] * kept + mean * moved;
      (*outputs)[2].data<float>()[c] = inputs[4].data<const float>()[c] * kept + variance * moved;
      (*outputs)[3].data<float>()[c] = mean;
      (*outputs)[4].data<float>()[c] = inverse;
      factor[c] = scale[c] * inverse;
      offset[c] = bias[c] - mean * factor[c];
    }
  };
  const auto apply = [&](int64_t b, int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = v.begin(b, chunk);
      scale_rows(x + at, v.size(chunk), v.block, &factor[b * v.block], &offset[b * v.block], bounds,
                 y + at);
    }
  };
  reduce_and_apply<Moments>(v, reduce, finish, apply);
}

// ---------------------------------------------------------------------------------------------
// BatchNormGrad

std::shared_ptr<ov::Node> BatchNormGrad::clone_with_new_inputs(
    const ov::OutputVector& inputs) const {
  return std::make_shared<BatchNormGrad>(inputs, rectifier_);
}

bool BatchNormGrad::visit_attributes(ov::AttributeVisitor& visitor) {
  visitor.on_attribute("rectified", rectifier_.is_on);
  visitor.on_attribute("ceiling", rectifier_.ceiling);
  return true;
}

void BatchNormGrad::infer() {
  const size_t count = rectifier_.is_on ? 6 : 5;
  require(get_input_size() == count, "takes ", count, " inputs, got ", get_input_size());
  const auto& shape = get_input_shape(0);
  for (size_t i = 0; i < 2; ++i) require_float(i, shape.size() == 4 ? 4 : 5);
  require(get_input_shape(1) == shape, "x and y_grad differ in shape");
  require(!rectifier_.is_on || get_input_shape(5) == shape, "x and y differ in shape");
  const ov::Shape channels{static_cast<size_t>(view_of(shape).channels())};
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
  const Gradient grad{inputs[1].data<const float>(),
                      rectifier_.is_on ? inputs[5].data<const float>() : nullptr,
                      Bounds(rectifier_)};
  const auto* scale = inputs[2].data<const float>();
  const auto* mean = inputs[3].data<const float>();
  const auto* inverse = inputs[4].data<const float>();
  float* x_grad = (*outputs)[0].data<float>();
  std::vector<float> shift(v.channels()), factor(v.channels()), slope(v.channels());
  const auto reduce = [&](int64_t b, int64_t begin, int64_t end, Products* products) {
    std::vector<float> sum(v.block), product(v.block);
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t at = v.begin(b, chunk);
      if (v.block == 1) {
        row_products(x + at, grad.at(at), v.size(chunk), mean[b], sum.data(), product.data());
      } else {
        chunk_products(x + at, grad.at(at), v.size(chunk), v.block, mean + b * v.block, sum.data(),
                       product.data());
      }
      products->add(sum.data(), product.data());
    }
  };
  const auto finish = [&](int64_t b, const std::vector<Products>& parts) {
    Products all(v.block);
    for (const auto& part : parts) all.add(part.sum.data(), part.product.data());
    const auto count = static_cast<float>(v.count());
    for (int64_t i = 0; i < v.block; ++i) {
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
      grad_rows(x + at, grad.at(at), v.size(chunk), v.block, factors, x_grad + at);
    }
  };
  reduce_and_apply<Products>(v, reduce, finish, apply);
}

}  // namespace paddle_ngraph
