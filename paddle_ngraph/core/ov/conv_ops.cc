#include "core/ov/conv_ops.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "core/common/caches.h"
#include "core/common/lru_cache.h"
#include "core/ov/boxes.h"
#include "core/ov/channel_blocks.h"
#include "core/ov/one_thread.h"
#include "core/ov/onednn.h"
#include "core/ov/parallel.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration conv_kernels_declaration(
    "conv_kernels", "whether oneDNN has more than reference code for a convolution",
    "attributes and shapes of the convolution", "4,096",
    "never: the values are constant in a process");

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Dims = dnnl::memory::dims;

constexpr auto kFloat = dnnl::memory::data_type::f32;

// The threads that reorder a filter to a kernel's layout divide its output channels in multiples of
// this number: the widest block.
constexpr int64_t kFilterBlock = 16;

Tag tag_of(const ConvProblem& problem, int64_t block) {
  if (problem.channels_last) return Tag::nhwc;
  if (block == 1) return Tag::nchw;
  return block == 8 ? Tag::nChw8c : Tag::nChw16c;
}

Dims dims_of(const ov::Shape& shape) { return {shape.begin(), shape.end()}; }

int64_t elements(const ov::Shape& shape, size_t from = 0) {
  int64_t count = 1;
  for (size_t i = from; i < shape.size(); ++i) count *= static_cast<int64_t>(shape[i]);
  return count;
}

// The filter's dims as oneDNN expects them: with groups, the number of groups comes first.
Dims filter_dims(const ConvProblem& problem) {
  Dims dims = dims_of(problem.filter);
  if (!problem.has_groups) return dims;
  dims[0] /= problem.attributes.groups;
  dims.insert(dims.begin(), problem.attributes.groups);
  return dims;
}

// Size in bytes of an element that kernels read, or write (`is_written`): results are float32.
size_t element_size(const ConvProblem& problem, bool is_written) {
  return problem.bfloat16 && !is_written ? sizeof(uint16_t) : sizeof(float);
}

// Whether the data or the output has channels last in memory. Only an input may have: kernels can
// write with channels last, but such results are copied to blocks.
bool has_channels_last(const ConvProblem& problem, bool is_written) {
  return problem.channels_last && !is_written;
}

BoxedTensor data_of(const ConvProblem& problem) {
  const bool is_written = problem.kind == ConvKind::data_gradient;
  return {problem.data, problem.data_block, element_size(problem, is_written),
          has_channels_last(problem, is_written)};
}

BoxedTensor out_of(const ConvProblem& problem) {
  const bool is_written = problem.kind == ConvKind::forward;
  return {problem.out, problem.out_block, element_size(problem, is_written),
          has_channels_last(problem, is_written)};
}

// Whether some tensor of a convolution has no elements, so that all sums are empty.
bool is_empty(const ConvProblem& problem) {
  return elements(problem.data) == 0 || elements(problem.filter) == 0 || elements(problem.out) == 0;
}

// A oneDNN primitive that computes a problem for a number of samples, with its memory descriptions.
struct ConvKernel {
  dnnl::primitive primitive;
  Desc data, filter, out, scratch;
  std::string name;
};

template <typename Description>
ConvKernel kernel_of(const Description& d, const Desc& data, const Desc& filter, const Desc& out) {
  return {dnnl::primitive(d), data, filter, out, d.scratchpad_desc(), d.impl_info_str()};
}

ConvKernel make_kernel(const ConvProblem& problem, int64_t batch, const Desc* filter_format) {
  OneThread one_thread;
  Dims data_dims = dims_of(problem.data), out_dims = dims_of(problem.out);
  data_dims[0] = out_dims[0] = batch;
  const auto type = problem.bfloat16 ? dnnl::memory::data_type::bf16 : kFloat;
  const Tag data_tag = tag_of(problem, problem.data_block);
  const Tag out_tag = tag_of(problem, problem.out_block);
  const Desc data(data_dims, type, data_tag), out(out_dims, type, out_tag);
  const Desc filter(filter_dims(problem), type, Tag::any);
  // The descriptions of results have type float32: the kernels' results are float32, whatever the
  // type of the operands.
  const Desc to_data(data_dims, kFloat, data_tag), to_out(out_dims, kFloat, out_tag);
  const Desc to_filter(filter_dims(problem), kFloat, Tag::any);
  const auto& a = problem.attributes;
  const Dims begin = a.pads_begin, strides = a.strides;
  // Computes the padding at the end from the size of the output: oneDNN requires padding that fits
  // exactly.
  Dims end(2), dilations(2);
  for (size_t i = 0; i < 2; ++i) {
    dilations[i] = a.dilations[i] - 1;
    const int64_t extent = static_cast<int64_t>(problem.filter[2 + i] - 1) * a.dilations[i] + 1;
    end[i] = static_cast<int64_t>(problem.out[2 + i] - 1) * strides[i] + extent - begin[i] -
             static_cast<int64_t>(problem.data[2 + i]);
  }
  dnnl::primitive_attr options;
  options.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  if (problem.kind == ConvKind::forward) {
    const dnnl::convolution_forward::primitive_desc d(
        engine(), dnnl::prop_kind::forward_training, kDirect, data,
        filter_format ? *filter_format : filter, to_out, strides, dilations, begin, end, options);
    return kernel_of(d, data, d.weights_desc(), to_out);
  }
  const dnnl::convolution_forward::primitive_desc forward(
      engine(), dnnl::prop_kind::forward_training, kDirect, data, filter, out, strides, dilations,
      begin, end, options);
  if (problem.kind == ConvKind::data_gradient) {
    const dnnl::convolution_backward_data::primitive_desc d(
        engine(), kDirect, to_data, filter_format ? *filter_format : filter, out, strides,
        dilations, begin, end, forward, options);
    return kernel_of(d, to_data, d.weights_desc(), out);
  }
  const dnnl::convolution_backward_weights::primitive_desc d(
      engine(), kDirect, data, filter_format ? *filter_format : to_filter, out, strides, dilations,
      begin, end, forward, options);
  return kernel_of(d, data, d.diff_weights_desc(), out);
}

std::string key_of(const ConvProblem& problem) {
  const auto& a = problem.attributes;
  std::ostringstream key;
  key << static_cast<int>(problem.kind) << problem.data << problem.filter << problem.out;
  for (const auto* pair : {&a.strides, &a.dilations, &a.pads_begin}) {
    for (int64_t number : *pair) key << ' ' << number;
  }
  key << ' ' << a.groups << ' ' << problem.data_block << ' ' << problem.out_block << ' '
      << problem.bfloat16 << problem.channels_last;
  return key.str();
}

bool is_fast(const ConvKernel& kernel, bool channels_last) {
  if (channels_last) return kernel.name.find("amx") != std::string::npos;
  return kernel.name.find("jit") == 0 || kernel.name.find("brg") == 0;
}

// Whether oneDNN's kernel would read uninitialized scratch memory: the bfloat16 gradient of a
// filter, where a row is shorter than a stride. It multiplies the memory by zeros, so the result is
// NaN if the memory happens to contain NaN.
bool reads_uninitialized_padding(const ConvProblem& problem) {
  return problem.bfloat16 && problem.kind == ConvKind::filter_gradient &&
         static_cast<int64_t>(problem.data[3]) < problem.attributes.strides[1];
}

// Whether oneDNN has more than reference code for the problem. Cached, because the plugin queries
// it many times while it transforms a function.
bool is_fast(const ConvProblem& problem) {
  if (reads_uninitialized_padding(problem)) return false;
  constexpr size_t kMaxCachedProblems = 4096;
  static LruCache<std::string, bool> known(kMaxCachedProblems);
  return known.get_or_create(key_of(problem), [&] {
    try {
      return is_fast(make_kernel(problem, 1, nullptr), problem.channels_last);
    } catch (const dnnl::error&) {
      return false;
    }
  });
}

// The axes along which the work of a convolution is divided among tasks.
enum ConvAxis { kSamples, kGroups, kInputs, kOutputs, kRows };

// A chunk of a problem as a problem in itself, and its offsets in the whole problem.
struct ConvPart {
  ConvProblem problem;
  Box data, out;
  Dims filter_offset;
};

// Divides a problem among threads. The axis of rows is that of the result; for the filter gradient,
// that of the output; for the data gradient, an element is a group of `stride` rows.
class ConvDivision {
 public:
  ConvDivision(const ConvProblem& problem, int64_t threads, bool by_channels, bool by_rows)
      : problem_(problem),
        data_(data_of(problem)),
        out_(out_of(problem)),
        grid_(divide(work(by_channels, by_rows), threads)) {
    // With channels last, each task computes a single sample: its result, which is copied to
    // blocks, is then still in the cache.
    if (problem.channels_last && !is(ConvKind::filter_gradient)) {
      grid_ = grid_.in_units(kSamples);
    }
  }

  const Grid& grid() const { return grid_; }
  double multiplies() const {
    return static_cast<double>(elements(problem_.out)) *
           static_cast<double>(elements(problem_.filter, 1));
  }

  // The part of the convolution that task `task` computes. Its box of the data or output has no
  // rows if the task is empty.
  ConvPart part(int64_t task) const {
    ConvPart part{problem_, data_.whole(), out_.whole(), Dims(filter_dims(problem_).size(), 0)};
    part.data.samples = part.out.samples = grid_.range(kSamples, task);
    choose_channels(task, &part);
    if (grid_.parts(kRows) > 1) choose_rows(grid_.range(kRows, task), &part);
    const auto shape = [](const Box& box, int64_t block, size_t width) {
      return ov::Shape{static_cast<size_t>(box.samples.size()),
                       static_cast<size_t>(box.blocks.size() * block),
                       static_cast<size_t>(std::max<int64_t>(0, box.rows.size())), width};
    };
    ConvProblem& p = part.problem;
    p.data = shape(part.data, p.data_block, p.data[3]);
    p.out = shape(part.out, p.out_block, p.out[3]);
    p.filter[0] = p.out[1];
    if (!p.has_groups) p.filter[1] = p.data[1];
    return part;
  }

 private:
  bool is(ConvKind kind) const { return problem_.kind == kind; }
  int64_t stride() const { return problem_.attributes.strides[0]; }
  // The distance between the first and the last row of data under a filter.
  int64_t reach() const {
    return static_cast<int64_t>(problem_.filter[2] - 1) * problem_.attributes.dilations[0];
  }

  // The smallest number of groups whose channels fill whole blocks, both in the data and in the
  // output.
  int64_t group_unit() const {
    const auto groups = static_cast<size_t>(problem_.attributes.groups);
    const auto is_full = [&](size_t count) {
      return problem_.data[1] / groups * count % static_cast<size_t>(problem_.data_block) == 0 &&
             problem_.out[1] / groups * count % static_cast<size_t>(problem_.out_block) == 0;
    };
    size_t unit = 1;
    while (unit < groups && (groups % unit != 0 || !is_full(unit))) ++unit;
    return static_cast<int64_t>(unit);
  }

  Work work(bool by_channels, bool by_rows) const {
    const auto& p = problem_;
    const bool to_filter = is(ConvKind::filter_gradient), to_data = is(ConvKind::data_gradient);
    const bool by_blocks = by_channels && !p.has_groups;
    Work work;
    work.multiplies = multiplies();
    work.axes.resize(kRows + 1);
    work.axes[kSamples].units = static_cast<int64_t>(p.data[0]);
    if (by_channels && p.has_groups) work.axes[kGroups].units = p.attributes.groups / group_unit();
    if (by_blocks && !is(ConvKind::forward) && p.data_block > 1) {
      work.axes[kInputs].units = data_.whole().blocks.size();
    }
    if (by_blocks && !to_data) work.axes[kOutputs].units = out_.whole().blocks.size();
    for (int axis : {kGroups, kInputs, kOutputs}) {
      (to_filter ? work.axes[axis].copied_unless : work.axes[axis].needs) = kSamples;
      if (to_filter && p.channels_last) work.axes[axis].copied_unless = kAlways;
    }
    Axis& rows = work.axes[kRows];
    if (by_rows) {
      rows.units = to_data ? blocks_of(static_cast<int64_t>(p.data[2]), stride())
                           : static_cast<int64_t>(p.out[2]);
    }
    rows.needs = kSamples;
    rows.copied_unless = kAlways;
    rows.overlap = static_cast<double>(reach()) / static_cast<double>(stride());
    rows.is_summed = work.axes[kSamples].is_summed = to_filter;
    const WorkOperand data{static_cast<double>(elements(p.data)),
                           along({kSamples, kGroups, kInputs, kRows})};
    const WorkOperand out{static_cast<double>(elements(p.out)),
                          along({kSamples, kGroups, kOutputs, kRows})};
    const WorkOperand filter{static_cast<double>(elements(p.filter)),
                             along({kGroups, kInputs, kOutputs}), false};
    work.result = to_filter ? filter : to_data ? data : out;
    work.operands = {to_data ? out : data, to_filter ? out : filter};
    return work;
  }

  void choose_channels(int64_t task, ConvPart* part) const {
    ConvProblem& p = part->problem;
    const auto in_blocks = [&](ConvAxis axis, int64_t blocks) {
      const Range units = grid_.range(axis, task);
      const int64_t size = blocks / grid_.units(axis);
      return Range{units.begin * size, units.end * size};
    };
    if (p.has_groups) {
      part->data.blocks = in_blocks(kGroups, part->data.blocks.size());
      part->out.blocks = in_blocks(kGroups, part->out.blocks.size());
      const Range groups = in_blocks(kGroups, p.attributes.groups);
      p.attributes.groups = groups.size();
      part->filter_offset[0] = groups.begin;
    } else {
      part->data.blocks = in_blocks(kInputs, part->data.blocks.size());
      part->out.blocks = in_blocks(kOutputs, part->out.blocks.size());
      part->filter_offset[0] = part->out.blocks.begin * p.out_block;
      part->filter_offset[1] = part->data.blocks.begin * p.data_block;
    }
  }

  // Sets the rows of data and output in a part: those that the filter connects with the rows `rows`
  // of the grid.
  void choose_rows(const Range& rows, ConvPart* part) const {
    int64_t& pad = part->problem.attributes.pads_begin[0];
    const auto height = static_cast<int64_t>(problem_.data[2]);
    const auto out_height = static_cast<int64_t>(problem_.out[2]);
    if (is(ConvKind::data_gradient)) {
      const int64_t begin = rows.begin * stride(), end = std::min(rows.end * stride(), height);
      const int64_t first = std::max<int64_t>(0, begin + pad - reach());
      part->data.rows = {begin, end};
      part->out.rows = {blocks_of(first, stride()),
                        std::min(out_height, (end - 1 + pad) / stride() + 1)};
      pad += begin - part->out.rows.begin * stride();
    } else {
      const int64_t begin = rows.begin * stride() - pad;
      part->out.rows = rows;
      part->data.rows = {std::max<int64_t>(0, begin),
                         std::min(height, (rows.end - 1) * stride() - pad + reach() + 1)};
      pad = part->data.rows.begin - begin;
    }
  }

  const ConvProblem& problem_;
  BoxedTensor data_, out_;
  Grid grid_;
};

}  // namespace

// The oneDNN primitives of one convolution for a given number of threads.
class ConvPlan {
 public:
  ConvPlan(const ConvProblem& problem, int64_t threads)
      : problem_(problem), data_(data_of(problem)), out_(out_of(problem)), grid_({1}) {
    // Divides the work only into chunks for which oneDNN has more than reference code; otherwise
    // not by rows, nor by channels.
    if (!make_tasks(threads, true, true) && !make_tasks(threads, true, false)) {
      make_tasks(threads, false, false);
    }
    for (const auto& slice : slices_) {
      filter_offsets_.push_back(filter_size_);
      filter_floats_ = (filter_size_ + slice.filter.get_size()) / sizeof(float);
      filter_size_ += aligned(slice.filter.get_size());
      make_reorders(slice, (threads + slices() - 1) / slices());
    }
  }

  // Computes the convolution or gradient. `first` has the problem's input type, and so has `second`
  // unless it is a filter, which is float32.
  void run(const void* first, const void* second, float* result) const {
    if (problem_.kind == ConvKind::filter_gradient) {
      run_filter_gradient(first, second, result);
    } else {
      run_data(first, static_cast<const float*>(second), result);
    }
  }

 private:
  struct Task {
    Box data, out;
    const ConvKernel* kernel;
    size_t slice;
  };

  // A slice of the filter, which one kernel reads or computes.
  struct Slice {
    Dims dims, offset;
    Desc filter;  // memory description of the slice in the layout that oneDNN chose
  };

  struct Reorder {
    dnnl::reorder primitive;
    Desc from, to;
    size_t byte_offset;  // byte offset of the slice in the buffer of all slices
  };

  int64_t slices() const { return static_cast<int64_t>(slices_.size()); }
  bool is(ConvKind kind) const { return problem_.kind == kind; }
  bool is_gradient() const { return is(ConvKind::filter_gradient); }
  bool is_padded() const { return problem_.given != problem_.filter; }

  // Number of partial filter gradients, one per chunk of samples and rows, which are summed.
  int64_t partials() const { return grid_.parts(kSamples) * grid_.parts(kRows); }
  int64_t partial_of(int64_t task) const {
    return grid_.part(kSamples, task) * grid_.parts(kRows) + grid_.part(kRows, task);
  }
  int64_t slice_of(int64_t task) const {
    return (grid_.part(kGroups, task) * grid_.parts(kInputs) + grid_.part(kInputs, task)) *
               grid_.parts(kOutputs) +
           grid_.part(kOutputs, task);
  }

  // Divides the problem into tasks. Returns false if oneDNN has no fast kernel for one of the
  // chunks.
  bool make_tasks(int64_t threads, bool by_channels, bool by_rows) {
    const ConvDivision division(problem_, threads, by_channels, by_rows);
    grid_ = division.grid();
    multiplies_ = division.multiplies();
    tasks_.clear();
    kernels_.clear();
    scratch_ = room_ = 0;
    slices_.assign(grid_.parts(kGroups) * grid_.parts(kInputs) * grid_.parts(kOutputs), {});
    for (int64_t i = 0; i < grid_.tasks(); ++i) {
      const ConvPart part = division.part(i);
      const ConvKernel* kernel = kernel_for(part.problem, by_channels || by_rows);
      if (kernel == nullptr) return false;
      const auto slice = static_cast<size_t>(slice_of(i));
      slices_[slice] = {filter_dims(part.problem), part.filter_offset, kernel->filter};
      tasks_.push_back({part.data, part.out, kernel, slice});
      scratch_ = std::max(scratch_, aligned(kernel->scratch.get_size()));
      room_ = std::max(room_, room_for(data_, part.data, !is(ConvKind::data_gradient)) +
                                  room_for(out_, part.out, !is(ConvKind::forward)));
    }
    return true;
  }

  // The kernel of a chunk; null if `fast` is required and the kernel is not.
  const ConvKernel* kernel_for(const ConvProblem& part, bool fast) {
    const auto key = key_of(part);
    const auto found = kernels_.find(key);
    if (found != kernels_.end()) return &found->second;
    if (fast && is_empty(part)) return nullptr;
    // The layout that other kernels for this slice of the filter have chosen.
    const Desc* format = nullptr;
    for (const auto& [_, kernel] : kernels_) {
      if (kernel.filter.get_dims() == filter_dims(part)) format = &kernel.filter;
    }
    try {
      const ConvKernel made = make_kernel(part, static_cast<int64_t>(part.data[0]), format);
      if (fast && !is_fast(made, part.channels_last)) return nullptr;
      return &kernels_.emplace(key, made).first->second;
    } catch (const dnnl::error&) {
      if (!fast) throw;
      return nullptr;
    }
  }

  // Whether a kernel can read a box of the tensor, or write it, without a copy.
  bool is_in_place(const BoxedTensor& tensor, const Box& box, bool is_read) const {
    return tensor.is_dense(box) && (is_read || box.blocks.size() == 1 || !problem_.channels_last);
  }

  size_t room_for(const BoxedTensor& tensor, const Box& box, bool is_read) const {
    return is_in_place(tensor, box, is_read) ? 0 : aligned(tensor.size(box));
  }

  // Copies the filter into one that is padded with channels of zeros.
  void pad_filter(const float* from, float* to) const {
    const int64_t row = elements(problem_.given, 1), whole = elements(problem_.filter, 1);
    const auto rows = static_cast<int64_t>(problem_.given[0]);
    const auto pad = [&](int64_t at) {
      const int64_t count = at < rows ? row : 0;
      std::copy_n(from + at * row, count, to + at * whole);
      std::fill(to + at * whole + count, to + (at + 1) * whole, 0.0F);
    };
    parallel_ranges(static_cast<int64_t>(problem_.filter[0]), whole,
                    [&](int64_t begin, int64_t end) {
                      for (int64_t at = begin; at < end; ++at) pad(at);
                    });
  }

  // The inverse of pad_filter(): copies a padded filter into one without padding.
  void crop_filter(const float* from, float* to) const {
    const int64_t row = elements(problem_.given, 1), whole = elements(problem_.filter, 1);
    parallel_ranges(static_cast<int64_t>(problem_.given[0]), row, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) std::copy_n(from + at * whole, row, to + at * row);
    });
  }

  // Size in bytes of the padded filter in plain layout; 0 if no padding is needed.
  size_t padded_size() const {
    return is_padded() ? aligned(static_cast<size_t>(elements(problem_.filter)) * sizeof(float))
                       : 0;
  }

  // The size of the blocks along the first axis of a filter in the kernels' format.
  static int64_t block_of(const Desc& filter) {
    const Dims blocks = filter.get_inner_blks(), axes = filter.get_inner_idxs();
    int64_t block = 1;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (axes[i] == 0) block *= blocks[i];
    }
    return block;
  }

  // Creates reorders between the plain filter and the kernels' format of a slice, in chunks along
  // the output channels.
  void make_reorders(const Slice& slice, int64_t threads) {
    OneThread one_thread;
    const Dims whole = filter_dims(problem_), dims = slice.dims;
    const Desc plain(whole, kFloat, whole.size() == 4 ? Tag::oihw : Tag::goihw);
    if (plain == slice.filter) return;
    const int64_t unit = std::max(kFilterBlock, block_of(slice.filter));
    const int64_t blocks = dims[0] % unit == 0 ? dims[0] / unit : 1;
    const int64_t count = std::min(blocks, threads);
    for (int64_t i = 0; i < count; ++i) {
      Dims part = dims, offset(dims.size(), 0), offset_in_whole = slice.offset;
      if (count > 1) {
        offset[0] = blocks * i / count * unit;
        part[0] = blocks * (i + 1) / count * unit - offset[0];
        offset_in_whole[0] += offset[0];
      }
      const Desc here = plain.submemory_desc(part, offset_in_whole);
      const Desc there = slice.filter.submemory_desc(part, offset);
      const Desc& from = is_gradient() ? there : here;
      const Desc& to = is_gradient() ? here : there;
      dnnl::primitive_attr options;
      options.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::reorder::primitive_desc d(engine(), from, engine(), to, options);
      reorders_.push_back({dnnl::reorder(d), from, to, filter_offsets_.back()});
    }
  }

  void reorder(const void* from, void* to) const {
    const auto count = static_cast<int64_t>(reorders_.size());
    const auto multiplies = static_cast<double>(elements(problem_.filter)) * kMultipliesPerStep;
    parallel_tasks({{count}, {count}}, multiplies, [&](int64_t i) {
      OneThread one_thread;
      const auto& part = reorders_[i];
      dnnl::memory source = view(part.from, is_gradient() ? at(from, part.byte_offset) : from);
      dnnl::memory target = view(part.to, is_gradient() ? to : at(to, part.byte_offset));
      part.primitive.execute(stream(), source, target);
    });
  }

  // Bytes of the buffers of all threads for copies and scratch memory; room_in() is the calling
  // thread's.
  size_t rooms_size() const { return static_cast<size_t>(shared_threads()) * (scratch_ + room_); }
  char* room_in(char* rooms) const {
    return rooms + static_cast<size_t>(thread_index()) * (scratch_ + room_);
  }

  // The memory in which a kernel finds `box`, a range of a tensor of data or output: the tensor's
  // own or, if the kernel cannot use that, memory in `room`, with a copy if the kernel reads it.
  char* gathered(const BoxedTensor& tensor, const Box& box, const void* data, bool is_read,
                 char** room) const {
    auto* memory = static_cast<char*>(const_cast<void*>(data));
    if (is_in_place(tensor, box, is_read)) return memory + tensor.byte_offset(box);
    char* copy = *room;
    *room += aligned(tensor.size(box));
    if (is_read) tensor.gather(memory, box, copy);
    return copy;
  }

  // The address that is `bytes` after `data`.
  static const void* at(const void* data, size_t bytes) {
    return static_cast<const char*>(data) + bytes;
  }

  // Executes a task's kernel; `filter` contains all slices of the filter in oneDNN's layout.
  void execute(const Task& task, const void* data, const void* filter, const void* out,
               char* room) const {
    OneThread one_thread;
    const ConvKernel& kernel = *task.kernel;
    char* const scratch = room;
    room += scratch_;
    const bool forward = problem_.kind == ConvKind::forward;
    const bool to_data = problem_.kind == ConvKind::data_gradient;
    char* const data_part = gathered(data_, task.data, data, !to_data, &room);
    char* const out_part = gathered(out_, task.out, out, !forward, &room);
    filter = at(filter, filter_offsets_[task.slice]);
    static constexpr int kNames[][3] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    const auto& names = kNames[static_cast<int>(problem_.kind)];
    kernel.primitive.execute(stream(), {{names[0], view(kernel.data, data_part)},
                                        {names[1], view(kernel.filter, filter)},
                                        {names[2], view(kernel.out, out_part)},
                                        {DNNL_ARG_SCRATCHPAD, view(kernel.scratch, scratch)}});
    if (is_gradient()) return;
    const BoxedTensor& tensor = forward ? out_ : data_;
    const Box& box = forward ? task.out : task.data;
    auto* result = static_cast<char*>(const_cast<void*>(forward ? out : data));
    if (!is_in_place(tensor, box, false)) {
      const char* part = forward ? out_part : data_part;
      if (problem_.channels_last) {
        tensor.scatter_channels_last(part, box, result);
      } else {
        tensor.scatter(part, box, result);
      }
    }
    clear_padding(tensor, box, result);
  }

  // Zeros the padding in a chunk of the result. The kernel computes padding as multiplications by
  // zeros, which give NaN where the data is not finite; the next convolution would propagate them
  // to the other channels.
  void clear_padding(const BoxedTensor& tensor, const Box& box, char* result) const {
    const bool forward = problem_.kind == ConvKind::forward;
    const bool is_first = forward || problem_.attributes.groups > 1;
    const auto channels = static_cast<int64_t>(problem_.given[is_first ? 0 : 1]);
    const int64_t block = forward ? problem_.out_block : problem_.data_block;
    const int64_t last = tensor.whole().blocks.end - 1;
    if (!is_padded() || channels % block == 0 || box.blocks.end <= last) return;
    const auto width = static_cast<int64_t>(forward ? problem_.out[3] : problem_.data[3]);
    for (int64_t sample = box.samples.begin; sample < box.samples.end; ++sample) {
      char* rows = result + tensor.byte_offset(sample, last, box.rows.begin);
      clear_lanes(reinterpret_cast<float*>(rows), box.rows.size() * width, block, channels % block);
    }
  }

  void run_data(const void* given, const float* filter, float* result) const {
    const size_t filter_size = reorders_.empty() ? 0 : filter_size_;
    const Workspace memory(filter_size + rooms_size() + padded_size());
    char* rooms = memory.data() + filter_size;
    if (is_padded()) {
      auto* padded = reinterpret_cast<float*>(rooms + rooms_size());
      pad_filter(filter, padded);
      filter = padded;
    }
    if (!reorders_.empty()) reorder(filter, memory.data());
    const void* used = reorders_.empty() ? static_cast<const void*>(filter) : memory.data();
    const bool forward = problem_.kind == ConvKind::forward;
    parallel_tasks(grid_, multiplies_, [&](int64_t task) {
      execute(tasks_[task], forward ? given : result, used, forward ? result : given,
              room_in(rooms));
    });
  }

  // Where samples or rows are divided among tasks, every chunk gives a partial gradient of the
  // filter; the result is their sum.
  void run_filter_gradient(const void* data, const void* grad, float* result) const {
    const size_t partials_size = filter_size_ * static_cast<size_t>(partials());
    const Workspace memory(partials_size + rooms_size() + padded_size());
    char* rooms = memory.data() + partials_size;
    auto* padded = is_padded() ? reinterpret_cast<float*>(rooms + rooms_size()) : nullptr;
    float* given = result;
    if (padded) result = padded;
    const auto partial = [&](int64_t part) {
      if (part == 0 && reorders_.empty()) return result;
      return reinterpret_cast<float*>(memory.data() + filter_size_ * static_cast<size_t>(part));
    };
    parallel_tasks(grid_, multiplies_, [&](int64_t task) {
      execute(tasks_[task], data, partial(partial_of(task)), grad, room_in(rooms));
    });
    if (partials() > 1) add_partials(partial);
    if (!reorders_.empty()) reorder(partial(0), result);
    if (padded) crop_filter(padded, given);
  }

  // Adds the partial filter gradients of all chunks to the first of them.
  template <typename Partial>
  void add_partials(const Partial& partial) const {
    float* total = partial(0);
    parallel_ranges(static_cast<int64_t>(filter_floats_), partials(),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t part = 1; part < partials(); ++part) {
                        const float* terms = partial(part);
                        for (int64_t i = begin; i < end; ++i) total[i] += terms[i];
                      }
                    });
  }

  ConvProblem problem_;
  BoxedTensor data_, out_;
  Grid grid_;
  double multiplies_ = 0;
  std::map<std::string, ConvKernel> kernels_;
  std::vector<Task> tasks_;
  std::vector<Slice> slices_;
  // The filters in the kernels' format: the byte offset of each slice, the total number of bytes,
  // and the number of floats up to the end of the last slice.
  std::vector<size_t> filter_offsets_;
  size_t filter_size_ = 0;
  size_t filter_floats_ = 0;
  std::vector<Reorder> reorders_;
  size_t scratch_ = 0;  // bytes of scratch memory that a task's kernel needs
  size_t room_ = 0;     // bytes that a task needs for copies of its data and results
};

namespace {

int64_t block_of(const ov::Shape& shape) {
  return shape.size() == 5 ? static_cast<int64_t>(shape[4]) : 1;
}

bool is_depthwise(const ov::Shape& filter, size_t groups) {
  return groups > 1 && filter[0] == groups && filter[1] == 1;
}

// The number of channels, rounded up to whole blocks.
size_t whole(size_t channels, int64_t block) {
  return static_cast<size_t>(blocks_of(static_cast<int64_t>(channels), block) * block);
}

// The shape of [N, C, H, W] if it is stored with channels last, as one block of all channels.
ov::Shape with_channels_last(const ov::Shape& shape) {
  return {shape[0], 1, shape[2], shape[3], shape[1]};
}

// The shape [N, C, H, W] in blocks of channels; with blocks of 1, as it is.
ov::Shape blocked(const ov::Shape& shape, int64_t block) {
  if (block == 1) return shape;
  const auto size = static_cast<size_t>(block);
  return {shape[0], shape[1] / size, shape[2], shape[3], size};
}

}  // namespace

size_t ConvOp::out_size(const ConvProblem& p, size_t axis) const {
  const auto& a = attributes();
  const int64_t extent = static_cast<int64_t>(p.filter[2 + axis] - 1) * a.dilations[axis] + 1;
  const int64_t room =
      static_cast<int64_t>(p.data[2 + axis]) + a.pads_begin[axis] + a.pads_end[axis] - extent;
  require(room >= 0, "the filter is larger than the data");
  return static_cast<size_t>(room / a.strides[axis] + 1);
}

int64_t ConvOp::read_block(const ov::Shape& shape) const {
  if (!attributes().channels_last) return block_of(shape);
  const auto channels = static_cast<int64_t>(shape[4]);
  return channels % kFilterBlock == 0 ? kFilterBlock : channels;
}

ConvProblem ConvOp::problem() const {
  ConvProblem p;
  p.kind = kind();
  p.bfloat16 = get_input_element_type(0) == ov::element::bf16;
  p.attributes = attributes();
  const bool forward = p.kind == ConvKind::forward, to_data = p.kind == ConvKind::data_gradient;
  p.given = forward || to_data ? get_input_shape(1)
                               : ov::Shape(attributes().sizes.begin(), attributes().sizes.end());
  require(p.given.size() == 4, "a filter of shape ", p.given);
  const auto& first = get_input_shape(0);
  const auto& second = get_input_shape(to_data ? 0 : 1);
  p.channels_last = attributes().channels_last;
  p.data_block = read_block(first);
  p.out_block = forward ? attributes().sizes[0] : read_block(second);
  if (to_data && p.channels_last) p.data_block = attributes().sizes[2];
  for (int64_t block : {p.data_block, p.out_block}) {
    const bool is_usual = block == 1 || block == 8 || block == 16;
    require(is_usual || (p.channels_last && block > 0), "a block of ", block, " channels");
  }
  auto groups = static_cast<size_t>(attributes().groups);
  const size_t channels = whole(p.given[1] * groups, p.data_block);
  const size_t features = whole(p.given[0], p.out_block);
  if (is_depthwise(p.given, groups)) groups = features;
  p.attributes.groups = static_cast<int64_t>(groups);
  p.has_groups = groups > 1;
  p.filter = {features, channels / groups, p.given[2], p.given[3]};
  p.data = {first[0], channels, first[2], first[3]};
  if (to_data) {
    for (size_t i = 0; i < 2; ++i) p.data[2 + i] = static_cast<size_t>(attributes().sizes[i]);
  }
  p.out = second;
  if (forward) p.out = {p.data[0], 0, out_size(p, 0), out_size(p, 1)};
  p.out.resize(4);
  p.out[1] = features;
  return p;
}

void ConvOp::infer() {
  require(get_input_size() == 2, "takes 2 inputs, got ", get_input_size());
  for (size_t i = 0; i < 2; ++i) {
    const auto rank = get_input_shape(i).size();
    const bool is_filter = i == 1 && kind() != ConvKind::filter_gradient;
    if (is_filter || get_input_element_type(0) != ov::element::bf16) {
      require_float(i, rank);
    } else {
      require(get_input_element_type(i) == ov::element::bf16, "inputs of different types");
    }
    require(rank == 5 || (rank == 4 && (is_filter || !attributes().channels_last)), "input ", i,
            " has rank ", rank);
  }
  const auto& a = attributes();
  for (const auto* pair : {&a.strides, &a.pads_begin, &a.pads_end, &a.dilations}) {
    require(pair->size() == 2, "an attribute holds ", pair->size(), " numbers, not 2");
  }
  const bool forward = kind() == ConvKind::forward, to_data = kind() == ConvKind::data_gradient;
  const size_t sizes = forward ? 1 : !to_data ? 4 : a.channels_last ? 3 : 2;
  require(a.sizes.size() == sizes, "attribute sizes holds ", a.sizes.size(), " numbers");
  require(!a.channels_last || get_input_element_type(0) == ov::element::bf16,
          "reads channels last in bf16 only");
  require(attributes().groups > 0, "attribute groups is out of range");
  for (size_t i = 0; i < 2; ++i) {
    require(a.strides[i] > 0 && a.dilations[i] > 0, "an attribute of axis ", i, " is out of range");
  }
  require(std::all_of(attributes().sizes.begin(), attributes().sizes.end(),
                      [](int64_t size) { return size >= 0; }),
          "attribute sizes is out of range");
  const auto p = problem();
  require(p.out_block > 1, "the result of a convolution is not in blocks");
  require(
      a.groups == 1 || p.given == p.filter || is_depthwise(p.given, static_cast<size_t>(a.groups)),
      "channels of a group do not divide into blocks");
  const auto data = blocked(p.data, p.data_block), out = blocked(p.out, p.out_block);
  const auto& read_data = p.channels_last ? with_channels_last(p.data) : data;
  const auto& read_out = p.channels_last ? with_channels_last(p.out) : out;
  require(get_input_shape(0) == (to_data ? read_out : read_data) &&
              (forward || to_data || get_input_shape(1) == read_out),
          "filter ", p.given, " does not fit");
  require(is_empty(p) || is_fast(p), "oneDNN has no fast kernel");
  set_output_type(0, ov::element::f32, forward ? out : to_data ? data : p.given);
}

void ConvOp::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  auto* result = outputs->front().data<float>();
  const bool nothing = inputs[0].get_size() == 0 || inputs[1].get_size() == 0;
  if (nothing || outputs->front().get_size() == 0) {
    std::fill_n(result, outputs->front().get_size(), 0.0F);
    return;
  }
  std::shared_ptr<const ConvPlan> plan;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!plan_) {
      plan_ = std::make_shared<ConvPlan>(problem(), tbb::this_task_arena::max_concurrency());
    }
    plan = plan_;
  }
  plan->run(static_cast<const ov::Tensor&>(inputs[0]).data(),
            static_cast<const ov::Tensor&>(inputs[1]).data(), result);
}

}  // namespace paddle_ngraph
