#include "core/ov/ov_function.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>

#include <openvino/openvino.hpp>

#include "core/common/error.h"
#include "core/common/float_environment.h"
#include "core/ov/empty_tensors.h"
#include "core/ov/extension_ops.h"
#include "core/ov/work.h"
#include "core/ov/workspace.h"

namespace paddle_ngraph {

namespace {

// Below this, waking a second thread and waiting for it takes longer than it saves.
constexpr double kLeastSharedNs = 50e3;

ElementType element_type(const ov::element::Type& type) {
  const std::string name = type.to_string();
  for (const auto& row : kElementTypes) {
    if (name == row.ngraph) return row.element;
  }
  throw NgraphError(concat("a result of nGraph element type ", type, " has no Paddle dtype"));
}

ov::Core& core() {
  static ov::Core core = [] {
    ov::Core made;
    made.add_extension(extension_ops());  // for functions read from files
    return made;
  }();
  return core;
}

// How many kernels a function for many shapes keeps, for shapes that recur. The plugin's default of
// 5000 means gigabytes of packed weights after some hundred shapes; making a kernel again is cheap.
constexpr int kKernelsKept = 200;

// Set by plugin_faults.py on models that the plugin would crash on when it fuses loops.
constexpr char kLoopsApart[] = "ngraph_loops_apart";
// Set by mixed_precision.py: the model says itself what is bfloat16, and the rest is float32.
constexpr char kMixed[] = "ngraph_mixed_precision";

ov::AnyMap configuration(const Settings& settings) {
  ov::AnyMap config{
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      // On CPUs with bfloat16 units the plugin's own default would be bfloat16.
      ov::hint::inference_precision(settings.bfloat16 ? ov::element::bf16 : ov::element::f32),
      {"CPU_RUNTIME_CACHE_CAPACITY", kKernelsKept},
  };
  if (!settings.fuses_loops) config.insert({"SNIPPETS_MODE", "DISABLE"});
  if (settings.num_threads == 1) {
    // On the calling thread. With one stream of one thread, the plugin loses what its operators
    // throw, binds all functions to the same core, and has a waiting thread for each.
    config.insert(ov::num_streams(0));
    return config;
  }
  if (settings.num_threads > 1) {
    config.insert(ov::inference_num_threads(settings.num_threads));
  }
  if (settings.streams > 1) config.insert(ov::num_streams(settings.streams));
  return config;
}

ov::CompiledModel compile(ov::Model* model, Settings* settings) {
  const auto shared = model->shared_from_this();
  if (work_ns(*model) < kLeastSharedNs) {
    settings->num_threads = 1;
    settings->streams = 0;
  }
  if (model->has_rt_info(kLoopsApart)) settings->fuses_loops = false;
  if (model->has_rt_info(kMixed)) settings->bfloat16 = false;
  try {
    return core().compile_model(shared, "CPU", configuration(*settings));
  } catch (const std::exception& error) {
    // The plugin fuses loops (its snippets) without checking that there are enough registers.
    if (!settings->fuses_loops || std::strstr(error.what(), "snippet") == nullptr) throw;
    settings->fuses_loops = false;
    return core().compile_model(shared, "CPU", configuration(*settings));
  }
}

ov::CompiledModel import(const Blob& blob, const Settings& settings) {
  const ov::Tensor view(ov::element::u8, {blob.num_bytes}, const_cast<char*>(blob.memory.get()));
  return core().import_model(view, "CPU", configuration(settings));
}

}  // namespace

class OvFunction::Implementation {
 public:
  Implementation(ov::Model* model, Settings settings)
      : settings_(settings), why_empty_(paddle_ngraph::why_empty(*model)) {
    if (why_empty_.empty()) start(compile(model, &settings_));
  }

  Implementation(Blob blob, const Settings& settings)
      : settings_(settings), blob_(std::move(blob)) {
    start(import(blob_, settings_));
  }

  const Settings& settings() const { return settings_; }

  void start(ov::CompiledModel model) {
    model_ = std::move(model);
    const auto is_dynamic = [](const auto& port) { return port.get_partial_shape().is_dynamic(); };
    const auto inputs = model_.inputs();
    const auto outputs = model_.outputs();
    // Where an input that is read by value counts, results are open though no input is.
    has_open_shapes_ = std::any_of(inputs.begin(), inputs.end(), is_dynamic) ||
                       std::any_of(outputs.begin(), outputs.end(), is_dynamic);
    for (const auto& output : outputs) {
      auto shape = has_open_shapes_ ? ov::Shape{} : output.get_shape();
      if (settings_.parts > 1) shape.at(0) *= static_cast<size_t>(settings_.parts);
      results_.push_back({element_type(output.get_element_type()), std::move(shape)});
    }
  }

  void save(const char* path) {
    require_elements();
    std::ofstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    model_.export_model(file);
    if (!file.flush()) throw NgraphError(concat("cannot write ", path));
  }

  bool has_open_shapes() const { return has_open_shapes_; }

  const std::vector<ResultType>& results() const { return results_; }

  void require_elements() const {
    if (!why_empty_.empty()) throw InvalidInput(why_empty_);
  }

  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
    Lease lease(this, static_cast<size_t>(settings_.parts));
    for (size_t part = 0; part < lease.size(); ++part) lease[part].bind(inputs, outputs, part);
    if (settings_.streams > 1 && lease.size() > 1) {
      execute_side_by_side(&lease);
    } else {
      for (size_t part = 0; part < lease.size(); ++part) lease[part].execute();
    }
  }

  void run(const std::vector<Input>& inputs, const Allocate& allocate) {
    for (const auto& input : inputs) {
      if (ov::shape_size(input.shape) == 0) throw InvalidInput("an input is empty");
    }
    Lease lease(this, 1);
    lease[0].bind(inputs);
    lease[0].execute();
    for (size_t i = 0; i < results_.size(); ++i) {
      const ov::Tensor result = lease[0].infer.get_output_tensor(i);
      void* const memory = allocate(i, result.get_shape());
      if (result.get_byte_size() > 0) std::memcpy(memory, result.data(), result.get_byte_size());
    }
  }

 private:
  // An infer request and the memory it was given last.
  struct Request {
    explicit Request(ov::CompiledModel& compiled)
        : model(compiled),
          infer(compiled.create_infer_request()),
          inputs(compiled.inputs().size()),
          outputs(compiled.outputs().size()) {}

    // Binds the request to its part of the memory of all parts.
    void bind(const std::vector<const void*>& new_inputs, const std::vector<void*>& new_outputs,
              size_t part) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        auto* const data = const_cast<void*>(new_inputs[i]);
        if (std::exchange(inputs[i], data) == data && data) continue;
        infer.set_input_tensor(i, view(model.input(i), data, part));
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        void* const data = new_outputs[i];
        if (std::exchange(outputs[i], data) == data && data) continue;
        infer.set_output_tensor(i, view(model.output(i), data, part));
      }
    }

    void bind(const std::vector<Input>& new_inputs) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        auto* const data = const_cast<void*>(new_inputs[i].data);
        infer.set_input_tensor(i,
                               view(model.input(i).get_element_type(), new_inputs[i].shape, data));
      }
    }

    void execute() {
      try {
        infer.infer();
      } catch (const std::exception& error) {
        unwrap_invalid_input(error);
        throw;
      }
    }

    static ov::Tensor view(const ov::Output<const ov::Node>& port, void* data, size_t part) {
      const size_t begin = part * ov::shape_size(port.get_shape()) * port.get_element_type().size();
      return view(port.get_element_type(), port.get_shape(),
                  data ? static_cast<char*>(data) + begin : data);
    }

    static ov::Tensor view(ov::element::Type type, const ov::Shape& shape, void* data) {
      static char nothing[64];  // an empty tensor has no memory, but ov::Tensor wants an address
      return ov::Tensor(type, shape, data ? data : nothing);
    }

    ov::CompiledModel& model;
    ov::InferRequest infer;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
  };

  // Requests for one run: idle ones first, then new ones.
  class Lease {
   public:
    Lease(Implementation* owner, size_t count) : owner_(owner) {
      {
        std::lock_guard<std::mutex> lock(owner_->mutex_);
        while (requests_.size() < count && !owner_->idle_.empty()) {
          requests_.push_back(std::move(owner_->idle_.back()));
          owner_->idle_.pop_back();
        }
      }
      while (requests_.size() < count) {
        requests_.push_back(std::make_unique<Request>(owner_->model_));
      }
    }
    ~Lease() {
      std::lock_guard<std::mutex> lock(owner_->mutex_);
      // The first one goes back last: the next run takes it first again, for the same memory.
      for (; !requests_.empty(); requests_.pop_back()) {
        owner_->idle_.push_back(std::move(requests_.back()));
      }
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    size_t size() const { return requests_.size(); }
    Request& operator[](size_t i) { return *requests_[i]; }

   private:
    Implementation* owner_;
    std::vector<std::unique_ptr<Request>> requests_;
  };

  // Each request runs on the next free stream. Their memory is the caller's, so all of them have
  // ended when this function returns.
  static void execute_side_by_side(Lease* lease) {
    std::exception_ptr error;
    const auto each = [&](const auto& step) {
      for (size_t i = 0; i < lease->size(); ++i) {
        try {
          step(&(*lease)[i].infer);
        } catch (...) {
          if (!error) error = std::current_exception();
        }
      }
    };
    each([](ov::InferRequest* infer) { infer->start_async(); });
    each([](ov::InferRequest* infer) { infer->wait(); });
    if (error) std::rethrow_exception(error);
  }

  Settings settings_;
  std::string why_empty_;
  Blob blob_;  // the model reads its constants from it
  ov::CompiledModel model_;
  bool has_open_shapes_ = false;
  std::vector<ResultType> results_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Request>> idle_;
};

OvFunction::OvFunction(void* model, const Settings& settings) {
  const DefaultFloatEnvironment environment;
  implementation_ = std::make_unique<Implementation>(static_cast<ov::Model*>(model), settings);
}

OvFunction::OvFunction(Blob blob, const Settings& settings) {
  const DefaultFloatEnvironment environment;
  implementation_ = std::make_unique<Implementation>(std::move(blob), settings);
}

OvFunction::~OvFunction() = default;

void OvFunction::require_elements() const { implementation_->require_elements(); }

const std::vector<ResultType>& OvFunction::results() const { return implementation_->results(); }

const Settings& OvFunction::settings() const { return implementation_->settings(); }

void OvFunction::save(const char* path) const { implementation_->save(path); }

void OvFunction::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  const DefaultFloatEnvironment environment;
  implementation_->run(inputs, outputs);
}

bool OvFunction::has_open_shapes() const { return implementation_->has_open_shapes(); }

void OvFunction::run(const std::vector<Input>& inputs, const Allocate& allocate) {
  const DefaultFloatEnvironment environment;
  implementation_->run(inputs, allocate);
}

void clear_workspaces() { Workspace::clear(); }

const std::type_info& model_type() { return typeid(ov::Model); }

}  // namespace paddle_ngraph
