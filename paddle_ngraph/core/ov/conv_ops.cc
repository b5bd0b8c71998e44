#include "core/ov/conv_ops.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "core/ov/channel_blocks.h"
#include "core/ov/one_thread.h"
#include "core/ov/onednn.h"
#include "core/ov/parallel.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;
using Dims = dnnl::memory::dims;

constexpr auto kFloat = dnnl::memory::data_type::f32;

// Filters are reordered in parts of a multiple of this many output channels: the widest block.
constexpr int64_t kFilterBlock = 16;

Tag tag_of(int64_t block) {
  if (block == 1) return Tag::nchw;
  return block == 8 ? Tag::nChw8c : Tag::nChw16c;
}

Dims dims_of(const ov::Shape& shape) { return {shape.begin(), shape.end()}; }

int64_t elements(const ov::Shape& shape, size_t from = 0) {
  int64_t count = 1;
  for (size_t i = from; i < shape.size(); ++i) count *= static_cast<int64_t>(shape[i]);
  return count;
}

// A filter's dims as oneDNN has them: with the groups in front, if there are any.
Dims filter_dims(const ConvProblem& problem) {
  Dims dims = dims_of(problem.filter);
  if (!problem.has_groups) return dims;
  dims[0] /= problem.attributes.groups;
  dims.insert(dims.begin(), problem.attributes.groups);
  return dims;
}

// Nothing to multiply: every sum is empty.
bool is_empty(const ConvProblem& problem) {
  return elements(problem.data) == 0 || elements(problem.filter) == 0 || elements(problem.out) == 0;
}

// One primitive: the computation for `batch` samples.
struct Kernel {
  dnnl::primitive primitive;
  Desc data, filter, out, scratch;
  std::string name;
};

template <typename Description>
Kernel kernel_of(const Description& d, const Desc& data, const Desc& filter, const Desc& out) {
  return {dnnl::primitive(d), data, filter, out, d.scratchpad_desc(), d.impl_info_str()};
}

Kernel make_kernel(const ConvProblem& problem, int64_t batch, const Desc* filter_format) {
  OneThread one_thread;
  Dims data_dims = dims_of(problem.data), out_dims = dims_of(problem.out);
  data_dims[0] = out_dims[0] = batch;
  const auto type = problem.bfloat16 ? dnnl::memory::data_type::bf16 : kFloat;
  const Desc data(data_dims, type, tag_of(problem.data_block));
  const Desc out(out_dims, type, tag_of(problem.out_block));
  const Desc filter(filter_dims(problem), type, Tag::any);
  // What is written is float32.
  const Desc to_data(data_dims, kFloat, tag_of(problem.data_block));
  const Desc to_out(out_dims, kFloat, tag_of(problem.out_block));
  const Desc to_filter(filter_dims(problem), kFloat, Tag::any);
  const auto& a = problem.attributes;
  const Dims begin = a.pads_begin, strides = a.strides;
  // The output implies the padding at the end; oneDNN wants it to fit exactly.
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
      << problem.bfloat16;
  return key.str();
}

bool is_fast(const Kernel& kernel) {
  return kernel.name.find("jit") == 0 || kernel.name.find("brg") == 0;
}

// Whether oneDNN has more than reference code for the problem. Remembered, because it is asked many
// times while the plugin transforms a function.
bool is_fast(const ConvProblem& problem) {
  static std::mutex mutex;
  static std::map<std::string, bool> known;
  constexpr size_t kMostKnown = 4096;
  const auto key = key_of(problem);
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  bool fast = false;
  try {
    fast = is_fast(make_kernel(problem, 1, nullptr));
  } catch (const dnnl::error&) {
    fast = false;
  }
  if (known.size() == kMostKnown) known.clear();
  known.emplace(key, fast);
  return fast;
}

// A range of the channels of the result, and the primitives that compute it.
struct Slice {
  ConvProblem problem;    // with these channels only
  int64_t first_channel;  // of the data
  int64_t first_feature;  // of the output
  Dims filter_offset;
  Desc filter;                        // the kernels' format
  std::map<int64_t, Kernel> kernels;  // by batch size
};

// How a problem is divided along the channels of its result: into groups, or blocks of channels.
class Channels {
 public:
  explicit Channels(const ConvProblem& problem) : problem_(problem) {
    const bool depthwise = problem.has_groups && problem.filter[1] == 1;
    const bool to_data = problem.kind == ConvKind::data_gradient;
    const auto along = problem.has_groups ? static_cast<size_t>(problem.attributes.groups)
                       : to_data          ? problem.data[1]
                                          : problem.filter[0];
    unit_ = !problem.has_groups || depthwise ? to_data ? problem.data_block : problem.out_block : 1;
    units_ = static_cast<int64_t>(along) / unit_;
  }

  int64_t units() const { return units_; }

  // The problem with part `i` of `count` of the channels.
  Slice part(int64_t i, int64_t count) const {
    const int64_t begin = units_ * i / count * unit_,
                  size = units_ * (i + 1) / count * unit_ - begin;
    Slice slice{problem_, 0, 0, Dims(filter_dims(problem_).size(), 0), {}, {}};
    ConvProblem& p = slice.problem;
    if (p.has_groups) {
      const auto groups = p.attributes.groups;
      p.attributes.groups = size;
      for (auto [shape, first] :
           {std::pair{&p.data, &slice.first_channel}, std::pair{&p.out, &slice.first_feature}}) {
        const auto of_group = static_cast<int64_t>((*shape)[1]) / groups;
        *first = begin * of_group;
        (*shape)[1] = static_cast<size_t>(size * of_group);
      }
      p.filter[0] = p.out[1];
    } else if (p.kind == ConvKind::data_gradient) {
      slice.first_channel = begin;
      p.data[1] = p.filter[1] = static_cast<size_t>(size);
    } else {
      slice.first_feature = begin;
      p.out[1] = p.filter[0] = static_cast<size_t>(size);
    }
    slice.filter_offset[p.has_groups || p.kind != ConvKind::data_gradient ? 0 : 1] = begin;
    return slice;
  }

 private:
  const ConvProblem& problem_;
  int64_t unit_ = 1;
  int64_t units_ = 1;
};

}  // namespace

// The primitives of one operator for a number of threads: the batch is divided into parts and, if
// it has fewer samples than there are threads, the channels of the result into slices.
class ConvPlan {
 public:
  ConvPlan(const ConvProblem& problem, int64_t threads)
      : problem_(problem), batch_(static_cast<int64_t>(problem.data[0])) {
    const int64_t parts = std::min(batch_, threads);
    for (int64_t i = 0; i <= parts; ++i) bounds_.push_back(batch_ * i / parts);
    const Channels channels(problem_);
    const int64_t wanted = std::min(channels.units(), (threads + parts - 1) / parts);
    if (wanted == 1 || !make_slices(channels, wanted)) make_slices(channels, 1);
    for (const auto& slice : slices_) {
      filter_places_.push_back(filter_size_);
      filter_floats_ = (filter_size_ + slice.filter.get_size()) / sizeof(float);
      filter_size_ += aligned(slice.filter.get_size());
      make_reorders(slice, (threads + wanted - 1) / wanted);
    }
  }

  // The first is in the problem's type, and so is the second unless it is a filter.
  void run(const void* first, const void* second, float* result) const {
    if (problem_.kind == ConvKind::filter_gradient) {
      run_filter_gradient(first, second, result);
    } else {
      run_data(first, static_cast<const float*>(second), result);
    }
  }

 private:
  struct Reorder {
    dnnl::reorder primitive;
    Desc from, to;
    size_t place;  // byte offset of the slice among the filters in the kernels' format
  };

  int64_t parts() const { return static_cast<int64_t>(bounds_.size()) - 1; }
  int64_t slices() const { return static_cast<int64_t>(slices_.size()); }
  int64_t tasks() const { return parts() * slices(); }
  bool is_gradient() const { return problem_.kind == ConvKind::filter_gradient; }
  bool is_padded() const { return problem_.given != problem_.filter; }

  // False if oneDNN has only reference code for one of several slices.
  bool make_slices(const Channels& channels, int64_t count) {
    slices_.clear();
    scratch_ = 0;
    for (int64_t i = 0; i < count; ++i) {
      slices_.push_back(channels.part(i, count));
      Slice& slice = slices_.back();
      for (int64_t part = 0; part < parts(); ++part) {
        const int64_t size = bounds_[part + 1] - bounds_[part];
        if (slice.kernels.count(size) != 0) continue;
        const Desc* format = slice.kernels.empty() ? nullptr : &slice.filter;
        const Kernel kernel = make_kernel(slice.problem, size, format);
        if (count > 1 && !is_fast(kernel)) return false;
        slice.filter = kernel.filter;
        scratch_ = std::max(scratch_, aligned(kernel.scratch.get_size()));
        slice.kernels.emplace(size, kernel);
      }
    }
    return true;
  }

  // The plain filter with padding of zeros.
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

  // The inverse.
  void crop_filter(const float* from, float* to) const {
    const int64_t row = elements(problem_.given, 1), whole = elements(problem_.filter, 1);
    parallel_ranges(static_cast<int64_t>(problem_.given[0]), row, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) std::copy_n(from + at * whole, row, to + at * row);
    });
  }

  // Bytes of the plain filter with padding; 0 if it has none.
  size_t padded_size() const {
    return is_padded() ? aligned(static_cast<size_t>(elements(problem_.filter)) * sizeof(float))
                       : 0;
  }

  // Between the plain filter and the kernels' format of a slice, in parts along the output
  // channels.
  void make_reorders(const Slice& slice, int64_t threads) {
    OneThread one_thread;
    const Dims whole = filter_dims(problem_), dims = filter_dims(slice.problem);
    const Desc plain(whole, kFloat, whole.size() == 4 ? Tag::oihw : Tag::goihw);
    if (plain == slice.filter) return;
    const int64_t blocks = dims[0] % kFilterBlock == 0 ? dims[0] / kFilterBlock : 1;
    const int64_t count = std::min(blocks, threads);
    for (int64_t i = 0; i < count; ++i) {
      Dims part = dims, offset(dims.size(), 0), offset_in_whole = slice.filter_offset;
      if (count > 1) {
        offset[0] = blocks * i / count * kFilterBlock;
        part[0] = blocks * (i + 1) / count * kFilterBlock - offset[0];
        offset_in_whole[0] += offset[0];
      }
      const Desc here = plain.submemory_desc(part, offset_in_whole);
      const Desc there = slice.filter.submemory_desc(part, offset);
      const Desc& from = is_gradient() ? there : here;
      const Desc& to = is_gradient() ? here : there;
      dnnl::primitive_attr options;
      options.set_scratchpad_mode(dnnl::scratchpad_mode::user);
      const dnnl::reorder::primitive_desc d(engine(), from, engine(), to, options);
      reorders_.push_back({dnnl::reorder(d), from, to, filter_places_.back()});
    }
  }

  void reorder(const void* from, void* to) const {
    in_parallel(static_cast<int64_t>(reorders_.size()), [&](int64_t i) {
      const auto& part = reorders_[i];
      dnnl::memory source = view(part.from, is_gradient() ? at(from, part.place) : from);
      dnnl::memory target = view(part.to, is_gradient() ? to : at(to, part.place));
      part.primitive.execute(stream(), source, target);
    });
  }

  template <typename Body>
  static void in_parallel(int64_t count, const Body& body) {
    parallel_ranges(count, kStepsPerTask, [&](int64_t begin, int64_t end) {
      OneThread one_thread;
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  // Calls body(part, slice, scratch memory) for all tasks, which the threads share.
  template <typename Body>
  void each_task(char* scratch, const Body& body) const {
    in_parallel(tasks(), [&](int64_t task) {
      body(task / slices(), task % slices(), scratch + static_cast<size_t>(task) * scratch_);
    });
  }

  // The memory so many bytes further on.
  static const void* at(const void* data, size_t bytes) {
    return static_cast<const char*>(data) + bytes;
  }

  // The memory in which `part` of the batch and the channels from `first` on begin.
  const void* from(const void* data, const Desc& desc, const ov::Shape& shape, int64_t part,
                   int64_t first) const {
    const int64_t count = bounds_[part] * elements(shape, 1) + first * elements(shape, 2);
    return at(data,
              static_cast<size_t>(count) * dnnl::memory::data_type_size(desc.get_data_type()));
  }

  // `filter`: the filters of all slices.
  void execute(int64_t part, int64_t number, const void* data, const void* filter, const void* out,
               char* scratch) const {
    const Slice& slice = slices_[number];
    const auto& kernel = slice.kernels.at(bounds_[part + 1] - bounds_[part]);
    data = from(data, kernel.data, problem_.data, part, slice.first_channel);
    out = from(out, kernel.out, problem_.out, part, slice.first_feature);
    filter = at(filter, filter_places_[number]);
    static constexpr int kNames[][3] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
    };
    const auto& names = kNames[static_cast<int>(problem_.kind)];
    kernel.primitive.execute(stream(), {{names[0], view(kernel.data, data)},
                                        {names[1], view(kernel.filter, filter)},
                                        {names[2], view(kernel.out, out)},
                                        {DNNL_ARG_SCRATCHPAD, view(kernel.scratch, scratch)}});
  }

  // Clears it in the results of a part. The kernel computes padding as products with zeros, which
  // are NaN where the data is not finite; the next convolution would carry them into the other
  // channels.
  void clear_padding(int64_t part, float* result) const {
    const bool forward = problem_.kind == ConvKind::forward;
    const bool is_first = forward || problem_.attributes.groups > 1;
    const auto channels = static_cast<int64_t>(problem_.given[is_first ? 0 : 1]);
    const int64_t block = forward ? problem_.out_block : problem_.data_block;
    if (!is_padded() || channels % block == 0) return;
    const auto& shape = forward ? problem_.out : problem_.data;
    const int64_t size = elements(shape, 1), places = elements(shape, 2);
    for (int64_t sample = bounds_[part]; sample < bounds_[part + 1]; ++sample) {
      float* last = result + (sample + 1) * size - block * places;
      clear_lanes(last, places, block, channels % block);
    }
  }

  void run_data(const void* given, const float* filter, float* result) const {
    const size_t filter_size = reorders_.empty() ? 0 : filter_size_;
    const size_t scratch_size = scratch_ * static_cast<size_t>(tasks());
    const Workspace memory(filter_size + scratch_size + padded_size());
    char* scratch = memory.data() + filter_size;
    if (is_padded()) {
      auto* padded = reinterpret_cast<float*>(scratch + scratch_size);
      pad_filter(filter, padded);
      filter = padded;
    }
    if (!reorders_.empty()) reorder(filter, memory.data());
    const void* used = reorders_.empty() ? static_cast<const void*>(filter) : memory.data();
    const bool forward = problem_.kind == ConvKind::forward;
    each_task(scratch, [&](int64_t part, int64_t slice, char* room) {
      execute(part, slice, forward ? given : result, used, forward ? result : given, room);
      if (slice + 1 == slices()) clear_padding(part, result);
    });
  }

  // Every part of the batch gives a gradient; their sum is the result.
  void run_filter_gradient(const void* data, const void* grad, float* result) const {
    const size_t partials_size = filter_size_ * static_cast<size_t>(parts());
    const size_t scratch_size = scratch_ * static_cast<size_t>(tasks());
    const Workspace memory(partials_size + scratch_size + padded_size());
    char* scratch = memory.data() + partials_size;
    auto* padded = is_padded() ? reinterpret_cast<float*>(scratch + scratch_size) : nullptr;
    float* given = result;
    if (padded) result = padded;
    const auto partial = [&](int64_t part) {
      if (part == 0 && reorders_.empty()) return result;
      return reinterpret_cast<float*>(memory.data() + filter_size_ * static_cast<size_t>(part));
    };
    each_task(scratch, [&](int64_t part, int64_t slice, char* room) {
      execute(part, slice, data, partial(part), grad, room);
    });
    float* total = partial(0);
    parallel_ranges(static_cast<int64_t>(filter_floats_), parts(), [&](int64_t begin, int64_t end) {
      for (int64_t part = 1; part < parts(); ++part) {
        const float* terms = partial(part);
        for (int64_t i = begin; i < end; ++i) total[i] += terms[i];
      }
    });
    if (!reorders_.empty()) reorder(total, result);
    if (padded) crop_filter(padded, given);
  }

  ConvProblem problem_;
  int64_t batch_;
  std::vector<int64_t> bounds_;  // of the parts of the batch
  std::vector<Slice> slices_;
  // The filters in the kernels' format: the byte offset of each slice, the bytes of all, and the
  // floats up to the end of the last.
  std::vector<size_t> filter_places_;
  size_t filter_size_ = 0;
  size_t filter_floats_ = 0;
  std::vector<Reorder> reorders_;
  size_t scratch_ = 0;  // bytes of one task
};

namespace {

int64_t block_of(const ov::Shape& shape) {
  return shape.size() == 5 ? static_cast<int64_t>(shape[4]) : 1;
}

bool is_depthwise(const ov::Shape& filter, size_t groups) {
  return groups > 1 && filter[0] == groups && filter[1] == 1;
}

// The number of channels with padding.
size_t whole(size_t channels, int64_t block) {
  return static_cast<size_t>(blocks_of(static_cast<int64_t>(channels), block) * block);
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
  p.data_block = block_of(first);
  p.out_block = forward ? attributes().sizes[0] : block_of(get_input_shape(to_data ? 0 : 1));
  for (int64_t block : {p.data_block, p.out_block}) {
    require(block == 1 || block == 8 || block == 16, "a block of ", block, " channels");
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
  p.out = get_input_shape(to_data ? 0 : 1);
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
    require(rank == 4 || rank == 5, "input ", i, " has rank ", rank);
  }
  const auto& a = attributes();
  for (const auto* pair : {&a.strides, &a.pads_begin, &a.pads_end, &a.dilations}) {
    require(pair->size() == 2, "an attribute holds ", pair->size(), " numbers, not 2");
  }
  static constexpr size_t kSizes[] = {1, 2, 4};  // by kind
  require(attributes().sizes.size() == kSizes[static_cast<int>(kind())], "attribute sizes holds ",
          attributes().sizes.size(), " numbers");
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
  const bool forward = kind() == ConvKind::forward, to_data = kind() == ConvKind::data_gradient;
  require(get_input_shape(0) == (to_data ? out : data) &&
              (forward || to_data || get_input_shape(1) == out),
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
