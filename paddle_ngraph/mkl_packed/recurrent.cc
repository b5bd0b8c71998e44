#include "mkl_packed/recurrent.h"

#include <algorithm>
#include <vector>

#include "core/common/float_environment.h"
#include "core/common/unaliased_stride.h"
#include "core/common/vectorized.h"
#include "mkl_packed/buffer.h"
#include "mkl_packed/packed_gemm.h"
#include "mkl_packed/packed_weights.h"
#include "mkl_packed/rounded.h"
#include "mkl_packed/stragglers.h"
#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

// A step of fewer floating-point operations, which take 4 to 10 us, is not worth more than one
// thread. If other work uses one of the cores, synchronizing threads in each step takes far longer
// than the time that they save.
constexpr int64_t kMinParallelFlops = 1'000'000;

// The least number of rows in the estimate of a step's work: with fewer rows, reading the weight
// takes as long as multiplying by this number of rows.
constexpr int64_t kMinRows = 4;

int threads_for(const Network& net, const MatmulSizes& matmul) {
  if (matmul.flops() < kMinParallelFlops) return 1;
  const int threads = max_threads();
  const bool is_synchronized = rows_per_shard(net.batch, threads) == net.batch;
  return is_synchronized && is_straggling() ? 1 : threads;
}

int threads_for_steps(const Network& net) {
  const int64_t rows = std::max(net.batch, kMinRows);
  return threads_for(net, {rows, net.gates(), std::max(net.hidden, net.input)});
}

// The recurrent matmul of a time step of all threads.
MatmulSizes matmul_of_step(const Network& net) { return {net.batch, net.gates(), net.hidden}; }

// A matmul over all steps: c[m, n] = a[m, k] * b[k, n], or c += a * b. It may be worth several
// threads where the matmul of a step is not.
void multiply_all_steps(const Network& net, const Matrix& a, const Matrix& b,
                        const MatmulSizes& matmul, float* c, bool adds) {
  const OmpThreads threads(threads_for(net, matmul));
  StepTimer timer(matmul, *net.gemm);
  net.gemm->gemm(a, b, matmul.m, matmul.n, matmul.k, c, matmul.n, adds);
  timer.has_straggler();
}

// One layer in one direction: its weights, and the offset of its results in the output.
struct Cell {
  Cell(const Network& net, int64_t layer, int64_t direction)
      : index(layer * net.directions + direction),
        backwards(direction == 1),
        input(layer == 0 ? net.input : net.width()),
        offset(direction * net.hidden) {
    const auto weight = [&](int64_t i) { return net.weights[i]; };
    w_ih = weight(2 * index)->data<float>();
    w_hh = weight(2 * index + 1);
    b_ih = weight(2 * (net.cells() + index))->data<float>();
    b_hh = weight(2 * (net.cells() + index) + 1)->data<float>();
  }

  int64_t index;
  bool backwards;
  int64_t input;   // number of features of the layer's input x
  int64_t offset;  // offset of the cell's h in each row of the output, in floats
  const float* w_ih;
  const phi::DenseTensor* w_hh;
  const float* b_ih;
  const float* b_hh;

  // The time step that the cell computes in its iteration `i`.
  int64_t step(const Network& net, int64_t i) const { return backwards ? net.steps - 1 - i : i; }
};

// Activations that one cell saves for its gradient: the gates after activation, then c and tanh(c)
// for LSTM, or the third gate of R h + d for GRU; each is [steps, batch, ...].
struct SavedActivations {
  static int64_t size(const Network& net) {
    return net.rows() * (net.gates() + extra(net) * net.hidden);
  }
  static int64_t extra(const Network& net) {
    return net.mode == Mode::lstm ? 2 : net.mode == Mode::gru ? 1 : 0;
  }

  template <typename Float>
  static Float* gates(Float* memory) {
    return memory;
  }
  template <typename Float>
  static Float* first(const Network& net, Float* memory) {
    return memory + net.rows() * net.gates();
  }
  template <typename Float>
  static Float* second(const Network& net, Float* memory) {
    return first(net, memory) + net.rows() * net.hidden;
  }
};

// The saved activations of a cell in the reserve, which contains those of every cell, then the
// outputs of all layers but the last.
template <typename Float>
Float* saved_activations(const Network& net, Float* reserve, int64_t cell) {
  return reserve + cell * SavedActivations::size(net);
}

template <typename Float>
Float* output_of(const Network& net, Float* reserve, int64_t layer) {
  return reserve + net.cells() * SavedActivations::size(net) + layer * net.rows() * net.width();
}

// The rows (sequences) of a batch that one shard of threads computes in all steps.
struct ShardRows {
  int64_t first;
  int64_t count;
};

bool is_active(const Network& net, int64_t step, int64_t row) {
  return net.lengths.empty() || step < net.lengths[row];
}

void apply_dropout(const Network& net, const float* values, const uint8_t* mask, float* result) {
  const float scale = net.dropout == 1.0f ? 0.0f : 1.0f / (1.0f - net.dropout);
  parallel_chunks(1, net.rows() * net.width(), 1, [&](int64_t, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) result[i] = mask[i] ? values[i] * scale : 0.0f;
  });
}

// Divides the hidden units of each row (a sequence of the batch) into chunks, in parallel. Calls
// `run(row, first, count)` for a chunk if the sequence includes this step, and `skip_chunk` if the
// sequence ended before.
template <typename Run, typename Skip>
void parallel_active_chunks(const Network& net, int64_t step, ShardRows rows, const Run& run,
                            const Skip& skip_chunk) {
  parallel_chunks(
      rows.count, net.hidden, num_gates(net.mode), [&](int64_t at, int64_t first, int64_t count) {
        const int64_t row = rows.first + at;
        is_active(net, step, row) ? run(row, first, count) : skip_chunk(row, first, count);
      });
}

// -- forward --------------------------------------------------------------------------------------

class ForwardCell {
 public:
  ForwardCell(const Network& net, const Cell& cell, const ForwardData& data, const float* x,
              float* out, float* memory)
      : net_(net),
        cell_(cell),
        x_(x),
        out_(out),
        gates_(memory),
        memory_(memory),
        bias_(net.gates()),
        recurrent_(net.batch * net.gates()),
        scratch_(net.is_test ? net.batch * net.hidden : 0) {
    const int64_t start = cell.index * net.batch * net.hidden;
    h_before_ = data.h_before + start;
    h_last_ = data.h_last + start;
    if (net.mode == Mode::lstm) {
      c_before_ = data.c_before + start;
      c_last_ = data.c_last + start;
    }
  }

  void run() {
    multiply_all_steps(net_, {x_, cell_.input}, {cell_.w_ih, cell_.input, true},
                       {net_.rows(), net_.gates(), cell_.input}, gates_, false);
    join_biases();
    const int64_t count = rows_per_shard(net_.batch);
    const auto weight =
        net_.is_test ? get_packed(*net_.gemm, *cell_.w_hh, WeightOrientation::transposed, count)
                     : pack_once(*net_.gemm, *cell_.w_hh, WeightOrientation::transposed, count);
    parallel_shards(net_.batch / count,
                    [&](int64_t shard) { run_steps(*weight, {shard * count, count}); });
  }

 private:
  // Whether h is kept in h_last from step to step: with sequences of different lengths, the output
  // is zero after the end of a sequence.
  bool keeps_h_in_last() const { return !net_.lengths.empty(); }

  void run_steps(const PackedMatrix& weight, ShardRows rows) {
    const auto make_step_matmul = [&](int64_t ld) {
      return weight.make_matmul({rows.count, ld, net_.gates(), /*accumulate=*/false});
    };
    float* recurrent_values = recurrent_.data() + rows.first * net_.gates();
    auto from_state = make_step_matmul(net_.hidden);
    auto from_out = make_step_matmul(net_.width());
    const int64_t state = rows.first * net_.hidden, size = rows.count * net_.hidden;
    if (keeps_h_in_last()) std::copy_n(h_before_ + state, size, h_last_ + state);
    if (c_last_ != nullptr) std::copy_n(c_before_ + state, size, c_last_ + state);
    StepTimer timer(matmul_of_step(net_), *net_.gemm);
    for (int64_t i = 0; i < net_.steps; ++i) {
      const int64_t step = cell_.step(net_, i);
      if (i == 0 || keeps_h_in_last()) {
        from_state->compute((i == 0 ? h_before_ : h_last_) + state, recurrent_values);
      } else {
        const float* before = out_of(cell_.step(net_, i - 1));
        from_out->compute(before + rows.first * net_.width(), recurrent_values);
      }
      run_step(i, step, rows);
      // After a step in which another thread was late, this thread computes alone, so the matmuls
      // are created again, for one thread.
      if (timer.has_straggler()) {
        from_state = make_step_matmul(net_.hidden);
        from_out = make_step_matmul(net_.width());
      }
    }
    finish(rows);
  }

  float* gates_of(int64_t step) { return gates_ + step * net_.batch * net_.gates(); }
  float* out_of(int64_t step) { return out_ + step * net_.batch * net_.width() + cell_.offset; }

  // Adds the two biases, b + d. For the third gate of GRU the result is b alone.
  void join_biases() {
    const int64_t joined = net_.mode == Mode::gru ? 2 * net_.hidden : net_.gates();
    for (int64_t j = 0; j < net_.gates(); ++j) {
      bias_.data()[j] = cell_.b_ih[j] + (j < joined ? cell_.b_hh[j] : 0.0f);
    }
  }

  void run_step(int64_t i, int64_t step, ShardRows rows) {
    parallel_active_chunks(
        net_, step, rows,
        [&](int64_t row, int64_t first, int64_t count) { run_chunk(i, step, row, first, count); },
        [&](int64_t row, int64_t first, int64_t count) { skip_chunk(i, step, row, first, count); });
  }

  void run_chunk(int64_t i, int64_t step, int64_t row, int64_t first, int64_t count) {
    const int64_t at = row * net_.hidden + first;
    ForwardChunk chunk{};
    chunk.hidden = net_.hidden;
    chunk.count = count;
    chunk.gates = gates_of(step) + row * net_.gates() + first;
    chunk.recurrent = recurrent_.data() + row * net_.gates() + first;
    chunk.bias = bias_.data() + first;
    chunk.h = out_of(step) + row * net_.width() + first;
    if (net_.mode == Mode::gru) {
      chunk.new_bias = cell_.b_hh + 2 * net_.hidden + first;
      chunk.recurrent_new = saved(SavedActivations::first<float>, step) + at;
      chunk.h_before = h_before(i, row) + first;
    } else if (net_.mode == Mode::lstm) {
      chunk.c_before = c_before(i) + at;
      chunk.c = c_of(step) + at;
      chunk.c_active = saved(SavedActivations::second<float>, step) + at;
    }
    forward_chunk(net_.mode, chunk);
    if (keeps_h_in_last()) std::copy_n(chunk.h, count, h_last_ + at);
  }

  void skip_chunk(int64_t i, int64_t step, int64_t row, int64_t first, int64_t count) {
    const int64_t at = row * net_.hidden + first;
    std::fill_n(out_of(step) + row * net_.width() + first, count, 0.0f);
    if (net_.mode == Mode::lstm && !net_.is_test) {
      std::copy_n(c_before(i) + at, count, c_of(step) + at);
    }
  }

  const float* h_before(int64_t i, int64_t row) {
    if (keeps_h_in_last()) return h_last_ + row * net_.hidden;
    if (i == 0) return h_before_ + row * net_.hidden;
    return out_of(cell_.step(net_, i - 1)) + row * net_.width();
  }

  // The c before the `i`-th step. If no gradient follows, c is updated in place in c_last.
  const float* c_before(int64_t i) {
    if (net_.is_test) return c_last_;
    return i == 0 ? c_before_ : c_of(cell_.step(net_, i - 1));
  }
  float* c_of(int64_t step) {
    if (net_.is_test) return c_last_;
    return SavedActivations::first(net_, memory_) + step * net_.batch * net_.hidden;
  }

  template <typename Part>
  float* saved(Part part, int64_t step) {
    if (net_.is_test) return scratch_.data();
    return part(net_, memory_) + step * net_.batch * net_.hidden;
  }

  void finish(ShardRows rows) {
    const int64_t last = cell_.step(net_, net_.steps - 1);
    for (int64_t i = 0; i < rows.count && !keeps_h_in_last(); ++i) {
      const int64_t row = rows.first + i;
      std::copy_n(out_of(last) + row * net_.width(), net_.hidden, h_last_ + row * net_.hidden);
    }
    if (net_.mode == Mode::lstm && !net_.is_test) {
      const int64_t state = rows.first * net_.hidden;
      std::copy_n(c_of(last) + state, rows.count * net_.hidden, c_last_ + state);
    }
  }

  const Network& net_;
  const Cell& cell_;
  const float* x_;
  float* out_;
  float* gates_;
  float* memory_;
  Buffer bias_;
  // The product R h of the current step. A matmul that adds it directly to the gates, which are in
  // distant memory for each step, takes longer.
  Buffer recurrent_;
  Buffer scratch_;
  const float* h_before_;
  const float* c_before_ = nullptr;
  float* h_last_;
  float* c_last_ = nullptr;
};

// -- backward -------------------------------------------------------------------------------------

NGRAPH_VECTORIZED
void add(const float* __restrict__ from, int64_t count, float* __restrict__ sums) {
  for (int64_t j = 0; j < count; ++j) sums[j] += from[j];
}

// Buffers for the gradients of a cell's gates, [rows, gates], and for their sums over the rows. If
// matmuls read bfloat16, each gradient is rounded once. Rounding and summing follow each step,
// while the gradients are in the caches.
class GateGrads {
 public:
  // Allocates memory for the gradients; none if `is_used` is false.
  GateGrads(const Network& net, int64_t num_shards, bool is_used)
      : gates_(is_used ? net.gates() : 0),
        stride_(unaliased_stride(gates_)),
        rounds_(net.gemm->rounds()),
        floats_(net.rows() * stride_),
        rounded_(rounds_ ? net.rows() : 0, gates_),
        sums_(num_shards, std::vector<float>(gates_, 0.0f)) {}

  int64_t stride() const { return stride_; }
  float* at(int64_t row) { return floats_.data() + row * stride_; }
  const uint16_t* rounded_at(int64_t row) { return rounds_ ? rounded_.at(row) : nullptr; }

  // The matrix of gradients that begins at row `row`.
  Matrix from(int64_t row, bool transposed = false) {
    return {at(row), stride_, transposed, rounded_at(row)};
  }

  // Sums the gate gradients of a step over the rows of a shard of the batch, and rounds them to
  // bfloat16 if needed. Called once the shard has written these rows.
  void finish(int64_t shard, int64_t row, int64_t count) {
    std::vector<float> of_step(gates_, 0.0f);
    for (int64_t i = row; i < row + count; ++i) add(at(i), gates_, of_step.data());
    add(of_step.data(), gates_, sums_[shard].data());
    if (rounds_) rounded_.round(at(row), stride_, row, count);
  }

  void sum(float* result) const {
    std::fill_n(result, gates_, 0.0f);
    for (const auto& sums : sums_) add(sums.data(), gates_, result);
  }

 private:
  int64_t gates_;
  // Floats from row to row of the gradients, with padding: the matmuls for the gradients of weights
  // read the matrix along its columns.
  int64_t stride_;
  bool rounds_;
  Buffer floats_;
  Rounded rounded_;  // the gradients rounded to bfloat16, in rows with the same stride
  // For each shard, the sums of the gates' gradients over its rows: the gradients of biases.
  std::vector<std::vector<float>> sums_;
};

class BackwardCell {
 public:
  BackwardCell(const Network& net, const Cell& cell, const BackwardData& data, const float* x,
               const float* out, const float* out_grad)
      : net_(net),
        cell_(cell),
        data_(data),
        x_(x),
        out_(out),
        out_grad_(out_grad),
        memory_(saved_activations(net, data.reserve, cell.index)),
        size_(net.batch * net.hidden),
        shard_rows_(rows_per_shard(net.batch)),
        gate_grads_(net, net.batch / shard_rows_, true),
        input_gate_grads_(net, net.batch / shard_rows_, net.mode == Mode::gru),
        through_(size_) {
    const int64_t start = cell.index * size_;
    h_before_ = data.h_before + start;
    carried_ = data.h_before_grad + start;
    std::copy_n(data.h_last_grad + start, size_, carried_);
    if (net.mode == Mode::lstm) {
      c_before_ = data.c_before + start;
      c_grad_ = data.c_before_grad + start;
      std::copy_n(data.c_last_grad + start, size_, c_grad_);
    }
  }

  // Computes this cell's share of `x_grad`, and adds it to `x_grad` if `adds`, else overwrites
  // `x_grad`.
  void run(float* x_grad, bool adds) {
    const auto weight = pack_once(*net_.gemm, *cell_.w_hh, WeightOrientation::plain, shard_rows_);
    parallel_shards(net_.batch / shard_rows_, [&](int64_t shard) { run_steps(*weight, shard); });
    set_weight_grads();
    multiply_all_steps(net_, of_input().from(0), {cell_.w_ih, cell_.input},
                       {net_.rows(), cell_.input, net_.gates()}, x_grad, adds);
  }

 private:
  void run_steps(const PackedMatrix& weight, int64_t shard) {
    const ShardRows rows{shard * shard_rows_, shard_rows_};
    const MatmulShape shape{rows.count, gate_grads_.stride(), net_.hidden, false};
    auto product = weight.make_matmul(shape);
    const int64_t state = rows.first * net_.hidden, size = rows.count * net_.hidden;
    float* through = through_.data() + state;
    std::fill_n(through, size, 0.0f);
    StepTimer timer(matmul_of_step(net_), *net_.gemm);
    for (int64_t i = net_.steps - 1; i >= 0; --i) {
      const int64_t step = cell_.step(net_, i);
      run_step(i, step, rows);
      const int64_t row = step * net_.batch + rows.first;
      gate_grads_.finish(shard, row, rows.count);
      if (net_.mode == Mode::gru) input_gate_grads_.finish(shard, row, rows.count);
      product->compute(gate_grads_.at(row), gate_grads_.rounded_at(row), through);
      if (timer.has_straggler()) product = weight.make_matmul(shape);
    }
    for (int64_t j = 0; j < size; ++j) carried_[state + j] += through[j];
  }

  template <typename Float>
  Float* at_step(Float* data, int64_t step, int64_t width) const {
    return data + step * net_.batch * width;
  }

  GateGrads& of_input() { return net_.mode == Mode::gru ? input_gate_grads_ : gate_grads_; }

  void run_step(int64_t i, int64_t step, ShardRows rows) {
    parallel_active_chunks(
        net_, step, rows,
        [&](int64_t row, int64_t first, int64_t count) { run_chunk(i, step, row, first, count); },
        [&](int64_t row, int64_t first, int64_t count) { skip_chunk(step, row, first, count); });
  }

  void run_chunk(int64_t i, int64_t step, int64_t row, int64_t first, int64_t count) {
    const int64_t at = row * net_.hidden + first;
    const int64_t gates = row * net_.gates() + first;
    const int64_t of_all = step * net_.batch + row;
    const int64_t out = row * net_.width() + cell_.offset + first;
    BackwardChunk chunk{};
    chunk.hidden = net_.hidden;
    chunk.count = count;
    chunk.gates = at_step(SavedActivations::gates(memory_), step, net_.gates()) + gates;
    chunk.h = at_step(out_, step, net_.width()) + out;
    chunk.out_grad = at_step(out_grad_, step, net_.width()) + out;
    chunk.through_gates = through_.data() + at;
    chunk.carried = carried_ + at;
    chunk.gate_grads = gate_grads_.at(of_all) + first;
    if (net_.mode == Mode::gru) {
      chunk.h_before =
          i == 0 ? h_before_ + at : at_step(out_, cell_.step(net_, i - 1), net_.width()) + out;
      chunk.recurrent_new = at_step(SavedActivations::first(net_, memory_), step, net_.hidden) + at;
      chunk.input_gate_grads = input_gate_grads_.at(of_all) + first;
    } else if (net_.mode == Mode::lstm) {
      const float* c = SavedActivations::first(net_, memory_);
      chunk.c_before = (i == 0 ? c_before_ : at_step(c, cell_.step(net_, i - 1), net_.hidden)) + at;
      chunk.c_active = at_step(SavedActivations::second(net_, memory_), step, net_.hidden) + at;
      chunk.c_grad = c_grad_ + at;
    }
    backward_chunk(net_.mode, chunk);
  }

  // After the end of a sequence the state does not change, and neither does its gradient.
  void skip_chunk(int64_t step, int64_t row, int64_t first, int64_t count) {
    const int64_t at = row * net_.hidden + first;
    for (int64_t j = at; j < at + count; ++j) carried_[j] += through_.data()[j];
    for (auto* grads : {&gate_grads_, &input_gate_grads_}) {
      if (grads == &input_gate_grads_ && net_.mode != Mode::gru) continue;
      float* gates = grads->at(step * net_.batch + row) + first;
      for (int64_t g = 0; g < num_gates(net_.mode); ++g) {
        std::fill_n(gates + g * net_.hidden, count, 0.0f);
      }
    }
  }

  void set_weight_grads() {
    const auto& grads = data_.weight_grads;
    const int64_t biases = 2 * (net_.cells() + cell_.index);
    of_input().sum(grads[biases]);
    gate_grads_.sum(grads[biases + 1]);
    float* of_x = grads[2 * cell_.index];
    float* of_h = grads[2 * cell_.index + 1];
    const int64_t inputs = cell_.input, both = inputs + net_.hidden,
                  stride = unaliased_stride(both);
    const Buffer read = states_read(stride);
    if (net_.mode == Mode::gru) {
      set_weight_grad(of_input(), {read.data(), stride}, inputs, of_x);
      set_weight_grad(gate_grads_, {read.data() + inputs, stride}, net_.hidden, of_h);
      return;
    }
    // One matmul computes the gradients of both weights: to read the gradients of the gates along
    // their columns takes long.
    const Buffer product(net_.gates() * both);
    set_weight_grad(gate_grads_, {read.data(), stride}, both, product.data());
    parallel_chunks(net_.gates(), 1, both, [&](int64_t gate, int64_t, int64_t) {
      const float* of_both = product.data() + gate * both;
      std::copy_n(of_both, inputs, of_x + gate * inputs);
      std::copy_n(of_both + inputs, net_.hidden, of_h + gate * net_.hidden);
    });
  }

  void set_weight_grad(GateGrads& grads, const Matrix& read, int64_t columns, float* result) {
    multiply_all_steps(net_, grads.from(0, /*transposed=*/true), read,
                       {net_.gates(), columns, net_.rows()}, result, false);
  }

  // The vectors that the forward pass multiplies by the gates' weights, for the gradients of these
  // weights. One row for each step and sequence: x, followed by h before the step.
  Buffer states_read(int64_t stride) const {
    Buffer read(net_.rows() * stride);
    parallel_chunks(net_.rows(), 1, stride, [&](int64_t row, int64_t, int64_t) {
      float* target = read.data() + row * stride;
      std::copy_n(x_ + row * cell_.input, cell_.input, target);
      std::copy_n(h_before(row), net_.hidden, target + cell_.input);
    });
    return read;
  }

  // The h that a step has read: the output of the step computed before it, or the initial state in
  // the first step.
  const float* h_before(int64_t row) const {
    const int64_t step = row / net_.batch, of_batch = row % net_.batch;
    if (step == cell_.step(net_, 0)) return h_before_ + of_batch * net_.hidden;
    const int64_t before = cell_.backwards ? step + 1 : step - 1;
    return at_step(out_, before, net_.width()) + of_batch * net_.width() + cell_.offset;
  }

  const Network& net_;
  const Cell& cell_;
  const BackwardData& data_;
  const float* x_;
  const float* out_;
  const float* out_grad_;
  const float* memory_;
  int64_t size_;
  int64_t shard_rows_;
  GateGrads gate_grads_, input_gate_grads_;
  Buffer through_;
  const float* h_before_;
  const float* c_before_ = nullptr;
  float* carried_;
  float* c_grad_ = nullptr;
};

}  // namespace

int64_t Network::reserve_size() const {
  if (is_test) return 0;
  return cells() * SavedActivations::size(*this) + (layers - 1) * rows() * width();
}

void forward(const Network& net, const ForwardData& data) {
  const DefaultFloatEnvironment environment;
  const OmpThreads threads(threads_for_steps(net));
  const int64_t size = net.rows() * net.width();
  // Without a gradient, the gates are not saved, and layers write alternately to `ping_pong` and to
  // the output.
  Buffer gates(net.is_test ? net.rows() * net.gates() : 0);
  Buffer ping_pong(net.is_test && net.layers > 1 ? size : 0);
  Buffer dropped(net.has_dropout() ? size : 0);
  const float* x = data.x;
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    const bool is_last = layer == net.layers - 1;
    float* out = data.out;
    if (!net.is_test && !is_last) out = output_of(net, data.reserve, layer);
    if (net.is_test && (net.layers - 1 - layer) % 2 == 1) out = ping_pong.data();
    if (layer > 0 && net.has_dropout()) {
      apply_dropout(net, x, data.mask, dropped.data());
      x = dropped.data();
    }
    for (int64_t direction = 0; direction < net.directions; ++direction) {
      const Cell cell(net, layer, direction);
      float* memory = net.is_test ? gates.data() : saved_activations(net, data.reserve, cell.index);
      ForwardCell(net, cell, data, x, out, memory).run();
    }
    x = out;
  }
}

void backward(const Network& net, const BackwardData& data) {
  const DefaultFloatEnvironment environment;
  const OmpThreads threads(threads_for_steps(net));
  const int64_t size = net.rows() * net.width();
  Buffer ping_pong[2] = {Buffer(net.layers > 2 ? size : 0), Buffer(net.layers > 1 ? size : 0)};
  Buffer dropped(net.has_dropout() ? size : 0);
  const float* out = data.out;
  const float* out_grad = data.out_grad;
  for (int64_t layer = net.layers - 1; layer >= 0; --layer) {
    const float* below = layer == 0 ? data.x : output_of(net, data.reserve, layer - 1);
    const float* x = below;
    if (layer > 0 && net.has_dropout()) {
      apply_dropout(net, below, data.mask, dropped.data());
      x = dropped.data();
    }
    float* x_grad = layer == 0 ? data.x_grad : ping_pong[layer % 2].data();
    for (int64_t direction = 0; direction < net.directions; ++direction) {
      const Cell cell(net, layer, direction);
      BackwardCell(net, cell, data, x, out, out_grad).run(x_grad, direction > 0);
    }
    if (layer > 0 && net.has_dropout()) apply_dropout(net, x_grad, data.mask, x_grad);
    out = below;
    out_grad = x_grad;
  }
}

}  // namespace paddle_ngraph::mkl_packed
