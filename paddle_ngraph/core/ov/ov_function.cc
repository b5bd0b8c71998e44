#include "core/ov/ov_function.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include <openvino/op/constant.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/openvino.hpp>

#include "core/common/affinity.h"
#include "core/common/caches.h"
#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/float_environment.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/lru_cache.h"
#include "core/common/openvino_use.h"
#include "core/common/tbb_fork_state.h"
#include "core/ov/byte_ports.h"
#include "core/ov/deferred_errors.h"
#include "core/ov/empty_tensors.h"
#include "core/ov/extension_ops.h"
#include "core/ov/first_run_trim.h"
#include "core/ov/kernel_caches.h"
#include "core/ov/openvino_start.h"
#include "core/ov/pin_values_op.h"
#include "core/ov/plugin_errors.h"
#include "core/ov/trim_memory.h"
#include "core/ov/work_estimate.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration workspaces_declaration("workspaces", "scratch memory of operators",
                                              "none: the last returned block",
                                              "as many blocks as operators ran at once",
                                              Workspace::clear, nullptr,
                                              "a pool: any block serves any operator");

const CacheDeclaration single_thread_configs_declaration(
    "single_thread_configs", "configurations for which OpenVINO uses a single thread",
    "threads, streams, and available cores", "256", "never: the values are constant in a process");

// Below this amount of work, waking a second thread and waiting for it takes longer than the time
// saved.
constexpr double kMinSharedWorkNs = 50e3;

ElementType element_type(const ov::element::Type& type) {
  const std::string name = type.to_string();
  for (const auto& row : kElementTypes) {
    if (name == row.ngraph) return row.element;
  }
  throw NgraphError(concat("a result of nGraph element type ", type, " has no Paddle dtype"));
}

// Creates the core, and queries properties, so that the libraries it loads on demand are loaded.
ov::Core create_core() {
  mark_tbb_started();
  ov::Core made;
  // Models that are read from files may contain operators of this package.
  made.add_extension(extension_ops());
  for (const char* device : {"CPU", "BATCH"}) {
    made.get_property(device, ov::supported_properties);
  }
  bound_primitive_cache(&made);
  return made;
}

// OpenVINO's core, destroyed at the exit of the process. A forked process never destroys it: the
// destructor waits for threads of the parent that waited for work during the fork.
struct OwnedCore {
  OwnedCore() = default;
  OwnedCore(const OwnedCore&) = delete;
  OwnedCore& operator=(const OwnedCore&) = delete;
  ~OwnedCore() {
    if (are_tbb_threads_lost()) static_cast<void>(core.release());
  }

  std::unique_ptr<ov::Core> core = std::make_unique<ov::Core>(create_core());
};

// Returns OpenVINO's core, one for the process, which is created at the first call. A fork waits
// until it is created: if a process forks while another thread loads a library, the child cannot
// load any library.
ov::Core& core() {
  const ForkBlocker fork_blocker;
  static const OwnedCore owned;
  return *owned.core;
}

// A run whose inputs have at least this size trims the heap when the inputs are freed.
constexpr size_t kLargeInputBytes = size_t{16} << 20;

// The key in a model's runtime information that turns fused loops off. Set by plugin_workarounds.py
// where the plugin would crash while it fuses loops.
constexpr char kNoLoopFusionKey[] = "ngraph_loops_apart";
// The key in a model's runtime information for mixed precision. Set by mixed_precision.py: the
// model itself specifies which nodes are bfloat16, and the rest is float32.
constexpr char kMixedPrecisionKey[] = "ngraph_mixed_precision";

std::string device_of(const Settings& settings) {
  return settings.device.empty() ? "CPU"
                                 : std::string(settings.device.begin(), settings.device.end());
}

ov::element::Type type_of(Precision precision) {
  switch (precision) {
    case Precision::kBfloat16:
      return ov::element::bf16;
    case Precision::kFloat16:
      return ov::element::f16;
    default:
      return ov::element::f32;
  }
}

// `cached_kernels`: the number of kernels that the function caches.
ov::AnyMap configuration(const Settings& settings, int cached_kernels) {
  ov::AnyMap config{
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      // The precision is set explicitly: the default is bfloat16 on CPUs with units for it, and
      // float16 on GPUs.
      ov::hint::inference_precision(type_of(settings.precision)),
  };
  if (!settings.device.empty()) return config;
  config.insert({"CPU_RUNTIME_CACHE_CAPACITY", cached_kernels});
  // By default the plugin rounds the activations of a product by compressed weights to 8 bits.
  config.insert(ov::hint::dynamic_quantization_group_size(0));
  if (!settings.fuses_loops) config.insert({"SNIPPETS_MODE", "DISABLE"});
  if (settings.num_threads == 1) {
    // Runs on the calling thread. With one stream of one thread, the plugin loses exceptions of its
    // operators, binds all functions to the same core, and creates an idle thread for each.
    config.insert(ov::num_streams(0));
    return config;
  }
  if (settings.num_threads > 1) {
    config.insert(ov::inference_num_threads(settings.num_threads));
  }
  if (settings.streams > 1) config.insert(ov::num_streams(settings.streams));
  return config;
}

// Whether the plugin has compiled for one stream of one thread, whatever was configured: it does so
// where there is one core, regardless of its hardware threads.
bool has_one_thread(const ov::CompiledModel& compiled) {
  return compiled.get_property(ov::inference_num_threads) == 1 &&
         compiled.get_property(ov::num_streams).num == 1;
}

// Configurations for which the plugin was found to use one stream of one thread: the threads and
// streams of the configuration, and the available cores. Never destroyed.
using ThreadConfig = std::tuple<int, int, int>;
using SingleThreadConfigs = LruCache<ThreadConfig, bool, void, ForkSafeMutex>;

SingleThreadConfigs& single_thread_configs() {
  constexpr size_t kMaxConfigs = 256;
  static SingleThreadConfigs* const all =
      std::make_unique<SingleThreadConfigs>(kMaxConfigs).release();
  return *all;
}

// Returns the model that make(configuration) compiles or imports. If the plugin would run it on a
// single thread of its own, the model is made again, to run on the calling thread.
template <typename Make>
ov::CompiledModel compile_with_threads(Settings* settings, int cached_kernels, const Make& make) {
  const bool may_share = settings->device.empty() && settings->num_threads != 1;
  const ThreadConfig config(settings->num_threads, settings->streams, cores_by_affinity());
  if (!may_share || !single_thread_configs().find(config)) {
    if (settings->num_threads != 1 || !settings->device.empty()) require_compiler();
    auto compiled = make(configuration(*settings, cached_kernels));
    if (!may_share || !has_one_thread(compiled)) return compiled;
    single_thread_configs().put(config, true);
  }
  settings->num_threads = 1;
  return make(configuration(*settings, cached_kernels));
}

// Changes a model before it is compiled for the CPU, and adapts the settings to it.
void prepare(ov::Model* model, Settings* settings) {
  pass_booleans_as_bytes(model);
  if (estimated_ns(*model) < kMinSharedWorkNs) {
    settings->num_threads = 1;
    settings->streams = 0;
  }
  if (model->has_rt_info(kNoLoopFusionKey)) settings->fuses_loops = false;
  if (model->has_rt_info(kMixedPrecisionKey)) settings->precision = Precision::kFloat32;
}

ov::CompiledModel compile_unchanged(ov::Model* model, Settings* settings) {
  const auto shared = model->shared_from_this();
  const int cached_kernels = num_cached_kernels(*model);
  const auto compile = [&] {
    return compile_with_threads(settings, cached_kernels, [&](const ov::AnyMap& configuration) {
      return core().compile_model(shared, device_of(*settings), configuration);
    });
  };
  if (!settings->device.empty()) return compile();
  prepare(model, settings);
  try {
    return compile();
  } catch (const std::exception& error) {
    if (!settings->fuses_loops || !is_loop_fusion_error(error)) throw;
    settings->fuses_loops = false;
    return compile();
  }
}

// Compiles a model that ends with a PinValues, so that its pinned values stay in memory after a run
// for the updates that follow; nullopt if they would not stay, or if the compilation fails.
std::optional<ov::CompiledModel> compile_with_pinning(ov::Model* model, Settings* settings) {
  if (settings->streams > 1 || settings->parts > 1) return std::nullopt;
  Settings found = *settings;
  try {
    auto compiled = compile_unchanged(model, &found);
    if (!PinValues::executes_last(compiled)) return std::nullopt;
    found.num_pinned = PinValues::of(*model)->count();
    *settings = found;
    return compiled;
  } catch (const std::exception&) {
    // Values cannot be pinned: the caller compiles the model without PinValues.
    return std::nullopt;
  }
}

ov::CompiledModel compile(ov::Model* model, Settings* settings) {
  if (PinValues::of(*model) != nullptr) {
    if (auto compiled = compile_with_pinning(model, settings)) return *compiled;
    PinValues::remove_from(model);
  }
  return unwrapping_errors([&] { return compile_unchanged(model, settings); });
}

// Has each constant whose data is in `memory` share the ownership of it. So memory lives as long as
// a compiled model reads it: the plugin compiles a copy, without constants that it folds or packs.
void attach_owners(const ov::Model& model, const std::vector<OwnedMemory>& memory) {
  for (const auto& node : model.get_ordered_ops()) {
    if (const auto* region = dynamic_cast<const ov::op::util::MultiSubGraphOp*>(node.get())) {
      for (const auto& body : region->get_functions()) attach_owners(*body, memory);
    }
    const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(node);
    if (constant == nullptr || constant->get_byte_size() == 0) continue;
    const auto* const data = static_cast<const char*>(constant->get_data_ptr());
    const auto found = std::find_if(memory.begin(), memory.end(), [&](const OwnedMemory& owned) {
      const auto* const begin = static_cast<const char*>(owned.data);
      return begin <= data && data < begin + owned.num_bytes;
    });
    if (found == memory.end()) continue;
    const auto owned = std::make_shared<ov::op::v0::Constant>(
        constant->get_element_type(), constant->get_shape(), data, found->owner);
    owned->set_friendly_name(constant->get_friendly_name());
    ov::copy_runtime_info(constant, owned);
    ov::replace_node(constant, owned);
  }
}

// Whether the last result has the addresses of this many values.
bool has_pinned_values(const ov::CompiledModel& compiled, size_t count) {
  const auto outputs = compiled.outputs();
  if (outputs.empty() || outputs.back().get_partial_shape().is_dynamic()) return false;
  const size_t size = ov::shape_size(outputs.back().get_shape());
  return size * outputs.back().get_element_type().size() == count * sizeof(FloatSpan);
}

// A stored function ends with the number of kernels that it caches: the plugin needs the number
// before it reads the model.
using StoredCachedKernels = int32_t;

int stored_cached_kernels(const Blob& blob) {
  StoredCachedKernels stored = 0;
  if (blob.num_bytes < sizeof(stored)) throw NgraphError("the function was stored incompletely");
  std::memcpy(&stored, blob.memory.get() + blob.num_bytes - sizeof(stored), sizeof(stored));
  if (stored < kMinCachedKernels || stored > kMaxCachedKernels) {
    throw NgraphError("the function was stored with an unknown number of kernels");
  }
  return stored;
}

ov::CompiledModel import(const Blob& blob, Settings* settings) {
  const int cached_kernels = stored_cached_kernels(blob);
  const ov::Tensor view(ov::element::u8, {blob.num_bytes - sizeof(StoredCachedKernels)},
                        const_cast<char*>(blob.memory.get()));
  auto compiled =
      compile_with_threads(settings, cached_kernels, [&](const ov::AnyMap& configuration) {
        return core().import_model(view, device_of(*settings), configuration);
      });
  if (settings->num_pinned > 0 && !PinValues::executes_last(compiled)) {
    throw NgraphError("the function was stored with another order of its operators");
  }
  if (settings->num_pinned > 0 && !has_pinned_values(compiled, settings->num_pinned)) {
    throw NgraphError("the function was stored with another number of pinned values");
  }
  return compiled;
}

// An infer request, and the addresses of the memory to which it is bound.
class BoundRequest {
 public:
  explicit BoundRequest(ov::CompiledModel& compiled)
      : infer(compiled.create_infer_request()),
        model_(compiled),
        input_bytes_(axes_of_bytes(compiled.inputs())),
        inputs_(compiled.inputs().size()),
        outputs_(compiled.outputs().size()) {}

  // Binds the request to chunk `part` of the inputs and outputs, which contain all chunks.
  void bind(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
            size_t part) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      rebind({const_cast<void*>(inputs[i]), part}, &inputs_[i], [&](const Binding& binding) {
        infer.set_input_tensor(i, view(model_.input(i), binding.data, part));
      });
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      rebind({outputs[i], part}, &outputs_[i], [&](const Binding& binding) {
        infer.set_output_tensor(i, view(model_.output(i), binding.data, part));
      });
    }
  }

  // Binds the request to a chunk of inputs of dynamic shape.
  void bind(const std::vector<Input>& inputs, size_t part, size_t parts) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      ov::Shape shape = inputs[i].shape;
      if (parts > 1) shape.at(0) /= parts;
      if (input_bytes_[i] > 0) shape.push_back(input_bytes_[i]);
      auto* const data = const_cast<void*>(inputs[i].data);
      infer.set_input_tensor(i, view(model_.input(i).get_element_type(), shape, data, part));
    }
  }

  // The values that the run has left in the memory of the model: its last result has their
  // addresses.
  std::vector<FloatSpan> pinned_values(size_t count) {
    const ov::Tensor addresses = infer.get_output_tensor(outputs_.size() - 1);
    std::vector<FloatSpan> values(count);
    std::memcpy(values.data(), addresses.data<const uint8_t>(), count * sizeof(FloatSpan));
    return values;
  }

  void execute() {
    unwrapping_errors([&] { infer.infer(); });
  }

  ov::InferRequest infer;

 private:
  struct Binding {
    void* data = nullptr;
    size_t part = 0;
    bool operator==(const Binding& other) const { return data == other.data && part == other.part; }
  };

  // Binds a request to other memory, unless `known` is that memory already. `known` is cleared
  // first: if the plugin rejects the memory, the current binding is unknown.
  template <typename Set>
  static void rebind(const Binding& binding, Binding* known, const Set& set) {
    if (*known == binding && binding.data != nullptr) return;
    *known = {};
    inject_fault(Step::kBind);
    set(binding);
    *known = binding;
  }

  static ov::Tensor view(const ov::Output<const ov::Node>& port, void* data, size_t part) {
    return view(port.get_element_type(), port.get_shape(), data, part);
  }

  static ov::Tensor view(ov::element::Type type, const ov::Shape& shape, void* data, size_t part) {
    // The address of empty tensors, since ov::Tensor accepts no null pointer.
    static char nothing[64];
    const size_t begin = part * ov::shape_size(shape) * type.size();
    return ov::Tensor(type, shape, data ? static_cast<char*>(data) + begin : nothing);
  }

  ov::CompiledModel& model_;
  std::vector<size_t> input_bytes_;  // see axes_of_bytes
  std::vector<Binding> inputs_, outputs_;
};

// A compiled model, and its infer requests that no run uses.
class Requests {
 public:
  explicit Requests(ov::CompiledModel model) : model_(std::move(model)) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  ov::CompiledModel& model() { return model_; }

  // The infer requests of one run, returned at its end: idle ones first, then new ones.
  class Lease {
   public:
    Lease(Requests* owner, size_t count) : owner_(owner) {
      {
        std::lock_guard<std::mutex> lock(owner_->mutex_);
        while (requests_.size() < count && !owner_->idle_.empty()) {
          requests_.push_back(std::move(owner_->idle_.back()));
          owner_->idle_.pop_back();
        }
      }
      while (requests_.size() < count) {
        requests_.push_back(std::make_unique<BoundRequest>(owner_->model_));
      }
    }
    ~Lease() {
      std::lock_guard<std::mutex> lock(owner_->mutex_);
      // The requests go back to the pool in reverse order, so that the next run gets the first one
      // first again, which is already bound to the memory of the first chunk.
      for (; !requests_.empty(); requests_.pop_back()) {
        owner_->idle_.push_back(std::move(requests_.back()));
      }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    size_t size() const { return requests_.size(); }
    BoundRequest& operator[](size_t i) { return *requests_[i]; }

   private:
    Requests* owner_;
    std::vector<std::unique_ptr<BoundRequest>> requests_;
  };

 private:
  ov::CompiledModel model_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BoundRequest>> idle_;
};

// Executes the requests of a run one after the other; calls done(i) when request i has ended.
template <typename Done>
void execute_sequentially(Requests::Lease* lease, const Done& done) {
  for (size_t i = 0; i < lease->size(); ++i) {
    (*lease)[i].execute();
    done(i);
  }
}

// Executes each request on the next free stream. Their memory belongs to the caller, so all of them
// have ended when this function returns.
template <typename Done>
void execute_concurrently(Requests::Lease* lease, const Done& done) {
  std::exception_ptr error;
  const auto each = [&](const auto& step) {
    for (size_t i = 0; i < lease->size(); ++i) {
      try {
        step(i);
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
  };
  each([&](size_t i) { (*lease)[i].infer.start_async(); });
  each([&](size_t i) {
    unwrapping_errors([&] { (*lease)[i].infer.wait(); });
    if (!error) done(i);
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace

class OvFunction::Implementation {
 public:
  Implementation(ov::Model* model, Settings settings)
      : settings_(settings), empty_tensor_error_(paddle_ngraph::find_empty_tensor(*model)) {
    if (!empty_tensor_error_.empty()) return;
    settings_.deferred_errors_id = DeferredErrors::assign_id(model);
    cached_kernels_ = num_cached_kernels(*model);
    start(compile(model, &settings_));
    if (settings_.remainder() > 0) source_ = model->shared_from_this();
  }

  Implementation(Blob blob, const Settings& settings)
      : settings_(settings), blob_(std::move(blob)) {
    cached_kernels_ = stored_cached_kernels(blob_);
    start(import(blob_, &settings_));
  }

  const Settings& settings() const { return settings_; }

  void save(const char* path) {
    require_elements();
    std::ofstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    requests_->model().export_model(file);
    // The plugin has written its header last.
    file.seekp(0, std::ios::end);
    file.write(reinterpret_cast<const char*>(&cached_kernels_), sizeof(cached_kernels_));
    if (!file.flush()) throw NgraphError(concat("cannot write ", path));
  }

  bool has_dynamic_shapes() const { return has_dynamic_shapes_; }

  bool may_pack() const {
    if (has_dynamic_shapes_ || settings_.streams > 1) return true;
    return settings_.remainder() > 0 && !has_compiled_remainder_;
  }

  const std::vector<ResultType>& results() const { return results_; }

  bool passes_bytes(size_t parameter) const { return parameter_bytes_.at(parameter) > 0; }

  bool accepts(const std::vector<ResultType>& parameters) const {
    const auto inputs = requests_->model().inputs();
    const auto accepts_one = [&](const auto& port, ResultType parameter) {
      auto& shape = parameter.shape;
      if (num_parts() > 1) {
        if (shape.empty() || shape[0] % num_parts() != 0) return false;
        shape[0] /= num_parts();
      }
      const auto* const type = type_in_bytes(port);
      if (const size_t axis = axis_of_bytes(type)) shape.push_back(axis);
      const auto element = type == nullptr ? element_type(port.get_element_type()) : type->element;
      return element == parameter.element &&
             port.get_partial_shape().compatible(ov::PartialShape(shape));
    };
    return std::equal(inputs.begin(), inputs.end(), parameters.begin(), parameters.end(),
                      accepts_one);
  }

  void require_elements() const {
    if (!empty_tensor_error_.empty()) throw InvalidInput(empty_tensor_error_);
  }

  bool run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           PinnedValues* pinned) {
    if (settings_.num_pinned > 0) {
      if (pinned == nullptr) throw NgraphError("nobody takes what the function holds");
      pinned->run_lock = exclusive_runs_.lock_run();
    }
    std::optional<FirstRunTrim> first;
    if (frees_inputs_.exchange(false)) first.emplace();
    return run_checked([&] {
      return run_parts(
          [&](BoundRequest* request, size_t part) { request->bind(inputs, outputs, part); },
          [&](BoundRequest* request, size_t) {
            if (settings_.num_pinned > 0)
              pinned->values = request->pinned_values(settings_.num_pinned);
          });
    });
  }

  bool run(const std::vector<Input>& inputs, const Allocate& allocate) {
    for (const auto& input : inputs) {
      if (ov::shape_size(input.shape) == 0) throw InvalidInput("an input is empty");
    }
    return run_checked([&] {
      std::vector<char*> memory;
      // The result of a chunk is copied while other chunks are computed.
      return run_parts(
          [&](BoundRequest* request, size_t part) { request->bind(inputs, part, num_parts()); },
          [&](BoundRequest* request, size_t part) {
            for (size_t i = 0; i < results_.size(); ++i) {
              const ov::Tensor result = request->infer.get_output_tensor(i);
              if (memory.size() == i) {
                auto shape = whole_shape(result.get_shape());
                if (result_bytes_[i] > 0) shape.pop_back();
                memory.push_back(static_cast<char*>(allocate(i, shape)));
              }
              const size_t bytes = result.get_byte_size();
              if (bytes > 0) std::memcpy(memory[i] + part * bytes, result.data(), bytes);
            }
          });
    });
  }

 private:
  template <typename Run>
  bool run_checked(const Run& run) {
    return deferred_errors_ == nullptr ? run() : deferred_errors_->run_and_check(run);
  }

  void start(ov::CompiledModel model) {
    deferred_errors_ = DeferredErrors::of(settings_.deferred_errors_id);
    requests_ = std::make_unique<Requests>(std::move(model));
    const auto is_dynamic = [](const auto& port) { return port.get_partial_shape().is_dynamic(); };
    const auto inputs = requests_->model().inputs();
    const auto outputs = requests_->model().outputs();
    // Results are checked for dynamic shapes, too: the shape of a result that depends on the value
    // of an input is dynamic, even if all inputs are static.
    has_dynamic_shapes_ = std::any_of(inputs.begin(), inputs.end(), is_dynamic) ||
                          std::any_of(outputs.begin(), outputs.end(), is_dynamic);
    frees_inputs_ = !has_dynamic_shapes_ && num_bytes(inputs) >= kLargeInputBytes;
    const size_t num_results = outputs.size() - (settings_.num_pinned > 0 ? 1 : 0);
    parameter_bytes_ = axes_of_bytes(inputs);
    result_bytes_ = axes_of_bytes(outputs);
    for (size_t i = 0; i < num_results; ++i) {
      auto shape = has_dynamic_shapes_ ? ov::Shape{} : whole_shape(outputs[i].get_shape());
      const auto* const type = type_in_bytes(outputs[i]);
      if (result_bytes_[i] > 0 && !has_dynamic_shapes_) shape.pop_back();
      const auto element =
          type == nullptr ? element_type(outputs[i].get_element_type()) : type->element;
      results_.push_back({element, std::move(shape)});
    }
  }

  static size_t num_bytes(const std::vector<ov::Output<const ov::Node>>& ports) {
    size_t bytes = 0;
    for (const auto& port : ports) {
      bytes += ov::shape_size(port.get_shape()) * port.get_element_type().size();
    }
    return bytes;
  }

  size_t num_parts() const { return static_cast<size_t>(settings_.parts); }

  // The shape of the whole batch's result, given that of a chunk.
  ov::Shape whole_shape(ov::Shape shape) const {
    if (settings_.parts > 1) shape.at(0) *= num_parts();
    return shape;
  }

  // Runs a batch: calls bind(request, part) with an infer request for each chunk `part`, executes
  // the requests, and calls done(request, part) as soon as a chunk and all chunks before it have
  // ended. Returns whether all threads shared the remaining chunks.
  template <typename Bind, typename Done>
  bool run_parts(const Bind& bind, const Done& done) {
    Requests* const remainder = remainder_requests();
    const auto num_remaining =
        remainder == nullptr ? size_t{0} : static_cast<size_t>(settings_.remainder());
    run_range(requests_.get(), 0, num_parts() - num_remaining, bind, done);
    if (num_remaining > 0)
      run_range(remainder, num_parts() - num_remaining, num_remaining, bind, done);
    return num_remaining > 0;
  }

  template <typename Bind, typename Done>
  void run_range(Requests* requests, size_t first, size_t count, const Bind& bind,
                 const Done& done) {
    Requests::Lease lease(requests, count);
    for (size_t i = 0; i < count; ++i) bind(&lease[i], first + i);
    const auto done_with = [&](size_t i) { done(&lease[i], first + i); };
    const bool has_groups = settings_.streams > 1 && settings_.num_threads != 1;
    if (has_groups && settings_.concurrent_runs == 1 && count > 1) {
      execute_concurrently(&lease, done_with);
    } else {
      execute_sequentially(&lease, done_with);
    }
  }

  // Requests for which all threads are divided into as many groups as there are remaining chunks;
  // nullptr if there are none. The model is compiled for them in the second run, since the first
  // run has been slow enough.
  Requests* remainder_requests() {
    if (settings_.remainder() == 0 || runs_.fetch_add(1) == 0) return nullptr;
    std::unique_lock<std::mutex> lock(remainder_mutex_, std::try_to_lock);
    // Another run is compiling the requests: none are available yet.
    if (!lock.owns_lock()) return nullptr;
    if (!std::exchange(has_tried_, true)) {
      Settings settings = settings_;
      settings.streams = settings_.remainder();
      try {
        auto model = source_ ? compile(source_.get(), &settings) : import(blob_, &settings);
        remainder_ = std::make_unique<Requests>(std::move(model));
      } catch (const std::exception&) {
        // Without requests of their own, the remaining chunks are computed like the others.
      }
      source_ = nullptr;
      has_compiled_remainder_ = true;
    }
    return remainder_.get();
  }

  Settings settings_;
  StoredCachedKernels cached_kernels_ = kMinCachedKernels;
  std::string empty_tensor_error_;
  Blob blob_;  // the memory that contains the constants of the models
  std::unique_ptr<Requests> requests_;
  bool has_dynamic_shapes_ = false;
  std::vector<ResultType> results_;
  std::vector<size_t> parameter_bytes_, result_bytes_;  // see axes_of_bytes
  // Errors that operators of the models record; nullptr: operators throw.
  std::shared_ptr<DeferredErrors> deferred_errors_;
  ExclusiveRuns exclusive_runs_;
  std::atomic<bool> frees_inputs_{false};  // whether the next run frees the memory of the inputs
  std::atomic<int64_t> runs_{0};
  std::mutex remainder_mutex_;
  bool has_tried_ = false;
  std::atomic<bool> has_compiled_remainder_{
      // Whether compiling the requests for remaining chunks has been tried, with success or not.
      false};
  // The model, until requests for remaining chunks have been compiled.
  std::shared_ptr<ov::Model> source_;
  std::unique_ptr<Requests> remainder_;
};

OvFunction::OvFunction(void* model, const Settings& settings,
                       const std::vector<OwnedMemory>& memory) {
  const OpenVinoUse use;
  const DefaultFloatEnvironment environment;
  auto* const source = static_cast<ov::Model*>(model);
  if (!memory.empty()) attach_owners(*source, memory);
  implementation_ = std::make_unique<Implementation>(source, settings);
}

OvFunction::OvFunction(Blob blob, const Settings& settings) {
  const OpenVinoUse use;
  const DefaultFloatEnvironment environment;
  implementation_ = std::make_unique<Implementation>(std::move(blob), settings);
}

OvFunction::~OvFunction() {
  if (is_openvino_lost() || num_forks_ != fork_count()) {
    // Never freed: the plugin takes locks when it destroys a compiled model, whose threads it lets
    // compile the next one.
    static_cast<void>(implementation_.release());
    return;
  }
  const OpenVinoUse use;
  // First, since the plugin trims the heap whenever it destroys a compiled model.
  sort_free_memory();
  if (settings().num_threads != 1 || !settings().device.empty()) note_idle_compiler();
  implementation_.reset();
}

void OvFunction::require_elements() const { implementation_->require_elements(); }

const std::vector<ResultType>& OvFunction::results() const { return implementation_->results(); }

bool OvFunction::passes_bytes(size_t parameter) const {
  return implementation_->passes_bytes(parameter);
}

bool OvFunction::accepts(const std::vector<ResultType>& parameters) const {
  return implementation_->accepts(parameters);
}

const Settings& OvFunction::settings() const { return implementation_->settings(); }

void OvFunction::save(const char* path) const {
  const OpenVinoUse use;
  implementation_->save(path);
}

bool OvFunction::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                     PinnedValues* pinned) {
  const OpenVinoUse use;
  const DefaultFloatEnvironment environment;
  return implementation_->run(inputs, outputs, pinned);
}

bool OvFunction::has_dynamic_shapes() const { return implementation_->has_dynamic_shapes(); }

bool OvFunction::may_pack() const { return implementation_->may_pack(); }

bool OvFunction::run(const std::vector<Input>& inputs, const Allocate& allocate) {
  const OpenVinoUse use;
  const DefaultFloatEnvironment environment;
  return implementation_->run(inputs, allocate);
}

void start_openvino() { core(); }

void prepare_for_cpu(void* model, Settings settings, const ReceiveProperty& receive) {
  auto* const source = static_cast<ov::Model*>(model);
  prepare(source, &settings);
  for (const auto& [name, value] : configuration(settings, num_cached_kernels(*source))) {
    receive(name.c_str(), value.as<std::string>().c_str());
  }
}

const std::type_info& model_type() { return typeid(ov::Model); }

}  // namespace paddle_ngraph
