#include "core/ov/attention_op.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "core/common/vectorized.h"
#include "core/ov/kernels/rows.h"
#include "core/ov/kernels/softmax.h"
#include "core/ov/parallel.h"

namespace paddle_ngraph {

namespace {

// The number of values that are added to a result in one pass over it.
constexpr int64_t kRows = 4;

NGRAPH_INLINE inline float product_of(const float* __restrict__ x, const float* __restrict__ y,
                                      int64_t length) {
  float sums[kLanes] = {};
  const int64_t even = length / kLanes * kLanes;
  for (int64_t i = 0; i < even; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  float total = sums[0];
  for (int64_t i = even; i < length; ++i) total += x[i] * y[i];
  return total;
}

// scores[i] = scale * q k_i + mask[i]; `mask` may be null.
NGRAPH_VECTORIZED void find_scores(const float* q, const float* k, int64_t length, int64_t width,
                                   float scale, const float* mask, float* scores) {
  for (int64_t i = 0; i < length; ++i) scores[i] = scale * product_of(q, k + i * width, width);
  if (mask == nullptr) return;
  for (int64_t i = 0; i < length; ++i) scores[i] += mask[i];
}

// out = sum of weights[i] * v_i.
NGRAPH_VECTORIZED void mix_values(const float* __restrict__ weights, const float* __restrict__ v,
                                  int64_t length, int64_t width, float* __restrict__ out) {
  std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
  int64_t i = 0;
  for (; i + kRows <= length; i += kRows) {
    const float* const rows = v + i * width;
    for (int64_t j = 0; j < width; ++j) {
      float sum = out[j];
      for (int64_t row = 0; row < kRows; ++row) sum += weights[i + row] * rows[row * width + j];
      out[j] = sum;
    }
  }
  for (; i < length; ++i) {
    for (int64_t j = 0; j < width; ++j) out[j] += weights[i] * v[i * width + j];
  }
}

// The number of matrices in a tensor of them.
int64_t num_matrices(const ov::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end() - 2, int64_t{1}, std::multiplies<>());
}

}  // namespace

void Attention::infer() {
  const size_t inputs = get_input_size();
  require(inputs == 3 || inputs == 4, "takes 3 or 4 inputs, got ", inputs);
  for (size_t i = 0; i < inputs; ++i) require_rows(i);
  const auto &q = get_input_partial_shape(0), &v = get_input_partial_shape(2);
  require(q.size() >= 3, "q has ", q.size(), " axes");
  for (size_t i = 1; i < 3; ++i) {
    require(get_input_partial_shape(i).size() == q.size(), "input ", i, " has another rank than q");
  }
  require(q[q.size() - 2] == 1, "q has other than one position");
  auto shape = q;
  shape[shape.size() - 1] = v[v.size() - 1];
  require(shape.is_static(), "the shape of its result is dynamic");
  set_output_type(0, ov::element::f32, shape);
}

void Attention::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto &q_shape = inputs[0].get_shape(), &k_shape = inputs[1].get_shape(),
             &v_shape = inputs[2].get_shape();
  const size_t rank = q_shape.size();
  const auto width = static_cast<int64_t>(q_shape[rank - 1]);
  const auto length = static_cast<int64_t>(k_shape[rank - 2]);
  const auto value_width = static_cast<int64_t>(v_shape[rank - 1]);
  const int64_t queries = num_matrices(q_shape), keys = num_matrices(k_shape);
  require(k_shape[rank - 1] == q_shape[rank - 1], "keys and queries differ in size");
  require(v_shape[rank - 2] == k_shape[rank - 2] && num_matrices(v_shape) == keys,
          "keys and values differ in number");
  require(queries == 0 || (keys > 0 && queries % keys == 0), "queries do not share keys evenly");
  if (queries == 0) return;
  const float* mask = nullptr;
  int64_t queries_per_mask = 1;
  if (inputs.size() == 4) {
    const auto elements = static_cast<int64_t>(inputs[3].get_size());
    const auto masks = length == 0 ? 1 : elements / length;
    require(inputs[3].get_shape().back() == k_shape[rank - 2] && masks > 0 && queries % masks == 0,
            "the mask has another size than the scores");
    mask = inputs[3].data<const float>();
    queries_per_mask = queries / masks;
  }
  const float* q = inputs[0].data<const float>();
  const float* k = inputs[1].data<const float>();
  const float* v = inputs[2].data<const float>();
  float* out = outputs->front().data<float>();
  const auto scale = static_cast<float>(attributes().scale);
  const int64_t queries_per_key = queries / keys;
  parallel_ranges(queries, length * (width + value_width) / kLanes,
                  [&](int64_t begin, int64_t end) {
                    std::vector<float> scores(2 * static_cast<size_t>(length));
                    float* const weights = scores.data() + length;
                    for (int64_t at = begin; at < end; ++at) {
                      const int64_t key = at / queries_per_key;
                      const float* const mask_row =
                          mask == nullptr ? nullptr : mask + at / queries_per_mask * length;
                      find_scores(q + at * width, k + key * length * width, length, width, scale,
                                  mask_row, scores.data());
                      softmax_row(scores.data(), length, weights);
                      mix_values(weights, v + key * length * value_width, length, value_width,
                                 out + at * value_width);
                    }
                  });
}

}  // namespace paddle_ngraph
