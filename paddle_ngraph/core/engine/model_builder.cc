#include "core/engine/model_builder.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "paddle/common/enforce.h"

#include "core/common/deferred_signals.h"
#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/float_environment.h"
#include "core/common/python_callbacks.h"
#include "core/engine/awaited_build.h"
#include "core/engine/compile_job.h"
#include "core/engine/engine_settings.h"
#include "core/engine/work_spans.h"
#include "core/ov/plugin_errors.h"
#include "core/paddle/interruption.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// The platform that the bindings of the openvino wheel were built for, as pybind11 writes it;
// setup.py reads it from the wheel.
constexpr char kOpenvinoPlatform[] = NGRAPH_OPENVINO_PLATFORM;

// The ov::Model of a Python object (pybind11's cross-module conduit): the two modules are built
// with different releases of pybind11 and can exchange only addresses.
void* address_of(const py::object& model) {
  py::capsule type(&model_type(), typeid(std::type_info).name());
  // Older releases of pybind11 count the leading "_" as part of the platform, newer ones do not.
  for (const char* platform : {kOpenvinoPlatform, kOpenvinoPlatform + 1}) {
    py::object pointer = model.attr("_pybind11_conduit_v1_")(py::bytes(platform), type,
                                                             py::bytes("raw_pointer_ephemeral"));
    if (!pointer.is_none()) return pointer.cast<py::capsule>().get_pointer();
  }
  throw NgraphError("this openvino wheel was built for another platform than paddle-ngraph");
}

py::tuple shape_of(const phi::DenseTensor& tensor) {
  const auto& dims = tensor.dims();
  py::tuple shape(dims.size());
  for (int i = 0; i < dims.size(); ++i) shape[i] = dims[i];
  return shape;
}

py::dict read_values(const std::vector<phi::DenseTensor*>& inputs,
                     const std::vector<size_t>& value_inputs) {
  py::dict values;
  for (size_t input : value_inputs) {
    const auto& tensor = *inputs[input];
    values[py::int_(input)] = py::bytes(static_cast<const char*>(tensor.data()), num_bytes(tensor));
  }
  return values;
}

// NumPy views of the weights, valid while the weights are neither written nor freed. No code writes
// to the views, but the bindings share only writable memory.
py::dict view_weights(const std::vector<phi::DenseTensor*>& inputs,
                      const std::vector<size_t>& weights) {
  py::dict views;
  for (size_t input : weights) {
    const auto& tensor = *inputs[input];
    views[py::int_(input)] =
        py::memoryview::from_memory(memory(tensor), static_cast<py::ssize_t>(num_bytes(tensor)),
                                    /*readonly=*/false);
  }
  return views;
}

py::object reference_to(phi::DenseTensor* tensor) {
  return py::cast(tensor, py::return_value_policy::reference);
}

py::list owned_list(std::vector<phi::DenseTensor> tensors) {
  py::list list;
  for (auto& tensor : tensors) list.append(py::cast(std::move(tensor)));
  return list;
}

RandomSample to_random_sample(const py::handle& sample) {
  return {static_cast<Distribution>(sample.attr("distribution").cast<int>()),
          sample.attr("a").cast<float>(), sample.attr("b").cast<float>(),
          sample.attr("seed").cast<int64_t>(), sample.attr("shape").cast<std::vector<size_t>>()};
}

Update to_update(const py::handle& step) {
  return {step.attr("optimizer").cast<int>(),
          step.attr("attributes").cast<std::vector<double>>(),
          step.attr("states").cast<std::vector<size_t>>(),
          step.attr("gradients").cast<std::vector<int64_t>>(),
          step.attr("factors").cast<std::vector<int64_t>>(),
          step.attr("parameters").cast<std::vector<int64_t>>()};
}

RangeCheck to_range_check(const py::handle& check) {
  return {check.attr("input").cast<size_t>(),
          check.attr("low").cast<std::vector<int64_t>>(),
          check.attr("high").cast<std::vector<int64_t>>(),
          check.attr("ignored").cast<std::vector<int64_t>>(),
          check.attr("error").attr("message").cast<std::string>(),
          static_cast<ErrorCode>(check.attr("error").attr("code").cast<int>()),
          check.attr("error").attr("op_id").cast<int64_t>()};
}

std::string message_of(const py::error_already_set& error) {
  return py::str(error.value()).cast<std::string>();
}

// The error code of a Python exception, and the id of the operator that it names.
std::pair<ErrorCode, int64_t> outcome_of(const py::error_already_set& error) {
  try {
    const auto [code, op_id] =
        callback(PythonCallback::kOutcome)(error.value()).cast<std::pair<int, int64_t>>();
    return {static_cast<ErrorCode>(code), op_id};
  } catch (const py::error_already_set& other) {
    if (const auto interruption = PythonInterrupt::of(other)) throw *interruption;
    // An error while examining an error: the first one is reported, as a general error.
    return {ErrorCode::kGeneral, kNoOperator};
  }
}

// The error code that Paddle converts to the same Python type as this exception has.
common::ErrorCode code_of(const py::error_already_set& error) {
  const std::pair<PyObject*, common::ErrorCode> codes[] = {
      {PyExc_IndexError, common::ErrorCode::OUT_OF_RANGE},
      {PyExc_ValueError, common::ErrorCode::INVALID_ARGUMENT},
      {PyExc_TypeError, common::ErrorCode::INVALID_TYPE},
      {PyExc_MemoryError, common::ErrorCode::RESOURCE_EXHAUSTED},
      {PyExc_NotImplementedError, common::ErrorCode::UNIMPLEMENTED},
      {PyExc_SystemError, common::ErrorCode::FATAL},
      {PyExc_OSError, common::ErrorCode::EXTERNAL},
      {PyExc_RuntimeError, common::ErrorCode::PRECONDITION_NOT_MET}};
  for (const auto& [type, code] : codes) {
    if (error.matches(type)) return code;
  }
  return common::ErrorCode::LEGACY;
}

// Paddle's original error, parsed from the text of the Python exception: "(Kind) message (at
// file:line)", and more. The text is taken apart for people only; the type decides.
common::enforce::EnforceNotMet paddle_error(const py::error_already_set& error) {
  std::string text = message_of(error);
  std::string file = __FILE__;
  int line = __LINE__;
  const size_t at = text.rfind(" (at ");
  const size_t colon = text.find(':', at);
  if (at != std::string::npos && colon != std::string::npos) {
    file = text.substr(at + 5, colon - at - 5);
    std::from_chars(text.data() + colon + 1, text.data() + text.size(), line);
    text.resize(at);
  }
  const size_t kind = text.find_first_not_of(" \n");
  const size_t end = text.find(") ");
  if (kind != std::string::npos && text[kind] == '(' && end != std::string::npos) {
    text.erase(0, end + 2);
  }
  // The summary follows the source lines of the user, which a graph does not record.
  const size_t summary = text.find("Error: ");
  if (text.compare(0, 12, "In user code") == 0 && summary != std::string::npos) {
    text.erase(0, summary + 7);
  }
  return {common::ErrorSummary(code_of(error), text), file.c_str(), line};
}

// Calls Python. A Python exception is passed to `fail`, which throws a C++ exception, while signals
// are still deferred, since `fail` calls Python to inspect the exception.
template <typename Function, typename Fail>
auto with_deferred_signals(DeferredSignals::Mode ctrl_c, Function&& function, Fail&& fail) {
  try {
    const DeferredSignals deferral(ctrl_c);
    deferral.check_ctrl_c();
    try {
      return function();
    } catch (const py::error_already_set& error) {
      if (error.matches(PyExc_Exception)) fail(error);
      throw;
    }
  } catch (const py::error_already_set& error) {
    if (const auto interruption = PythonInterrupt::of(error)) throw *interruption;
    throw NgraphError(error.what());
  }
}

template <typename Function>
auto with_python(Function&& function) {
  py::gil_scoped_acquire gil;
  return with_deferred_signals(DeferredSignals::Mode::kInherited, function,
                               [](const py::error_already_set& error) {
                                 const auto text = message_of(error);
                                 if (error.matches(PyExc_MemoryError)) throw std::bad_alloc();
                                 // Of an error of the core's operators that its passes evaluate,
                                 // OpenVINO passes on only the text: code and operator are parsed
                                 // from it.
                                 if (const auto found = found_invalid_input(text.c_str())) {
                                   throw NgraphError(found->what(), found->code(), found->op_id());
                                 }
                                 const auto [code, op_id] = outcome_of(error);
                                 if (error.matches(PyExc_ValueError))
                                   throw InvalidInput(text, code, op_id);
                                 throw NgraphError(text, code, op_id);
                               });
}

// Sets the streams of a function for one chunk of a batch: the threads are divided among the
// chunks, since no other run is concurrent.
void divide_threads_among_parts(int threads, Settings* settings) {
  settings->streams = std::min(settings->parts, threads);
  const int remainder = settings->parts % settings->streams;
  settings->shares_remainder = remainder > 0 && threads / remainder > threads / settings->streams;
}

py::list signature_of(const std::vector<phi::DenseTensor*>& inputs) {
  py::list signature;
  for (const auto* tensor : inputs) {
    signature.append(py::make_tuple(element_name(tensor->dtype()), shape_of(*tensor)));
  }
  return signature;
}

}  // namespace

void verify_graph(const std::string& graph) {
  with_python([&] {
    callback(PythonCallback::kVerifyGraph)(py::bytes(graph));
    return true;
  });
}

std::string build_environment(const std::string& graph, const Settings& settings) {
  return with_python([&] {
    return callback(PythonCallback::kBuildEnvironment)(graph, name_of(settings.precision),
                                                       name_of(settings.weight_format),
                                                       threads_of(settings))
        .cast<std::string>();
  });
}

void remember_shapes(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                     const std::vector<size_t>& value_inputs, int parts) {
  with_python([&] {
    const py::tuple signature = signature_of(inputs);
    callback(PythonCallback::kRememberShapes)(graph, signature, read_values(inputs, value_inputs),
                                              parts);
    return true;
  });
}

std::map<std::string, std::string> prepare_for_cpu(const py::object& model,
                                                   const std::string& precision, int threads) {
  Settings settings;
  settings.precision = precision_named(precision);
  settings.num_threads = threads;
  std::map<std::string, std::string> properties;
  prepare_for_cpu(address_of(model), settings,
                  [&](const char* name, const char* value) { properties.emplace(name, value); });
  return properties;
}

void disable_dynamic_shapes(const std::string& graph) {
  with_python([&] {
    callback(PythonCallback::kDisableDynamicShapes)(graph);
    return true;
  });
}

BuiltFunction build_function(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                             const std::vector<size_t>& value_inputs,
                             const std::vector<size_t>& weights,
                             const std::vector<OwnedMemory>& copies, const Settings& settings) {
  // Default float arithmetic in this thread, where the bridge computes constants by NumPy.
  const DefaultFloatEnvironment environment;
  return with_python([&]() -> BuiltFunction {
    const auto convert = [&]() -> py::object {
      const WorkSpan span(WorkKind::kConvert);
      return callback(PythonCallback::kBuildModel)(
          graph, signature_of(inputs), read_values(inputs, value_inputs),
          view_weights(inputs, weights), name_of(settings.precision),
          name_of(settings.weight_format), threads_of(settings) / settings.streams);
    };
    const py::object result = convert();
    BuiltFunction built;
    built.parameter_inputs = result.attr("parameter_inputs").cast<std::vector<size_t>>();
    for (const auto& sample : py::list(result.attr("draws")))
      built.samples.push_back(to_random_sample(sample));
    for (const auto& check : py::list(result.attr("checks"))) {
      built.checks.push_back(to_range_check(check));
    }
    built.symbolic_dims = result.attr("open_sizes").cast<std::vector<int>>();
    built.guards = result.attr("guards").cast<std::vector<int64_t>>();
    for (const auto& step : py::list(result.attr("updates"))) {
      built.updates.steps.push_back(to_update(step));
    }
    if (settings.num_threads > 0) {
      built.updates.num_threads = std::max(1, settings.num_threads / std::max(1, settings.streams));
    }
    void* model = address_of(result.attr("model"));
    Settings of_part = settings;
    of_part.parts = result.attr("parts").cast<int>();
    const auto device = result.attr("device").cast<std::string>();
    of_part.device.assign(device.begin(), device.end());
    if (settings.streams == 1) divide_threads_among_parts(threads_of(settings), &of_part);
    const auto compile = [&] {
      py::gil_scoped_release release;
      const WorkSpan span(WorkKind::kCompile);
      inject_fault(Step::kCompile);
      return std::make_unique<OvFunction>(model, of_part, copies);
    };
    if (!built.is_symbolic()) {
      built.function = compile();
      return built;
    }
    try {
      built.function = compile();
    } catch (const std::exception&) {
      // The function with dynamic shapes fails: built again with static shapes.
      disable_dynamic_shapes(graph);
      return build_function(graph, inputs, value_inputs, weights, copies, settings);
    }
    return built;
  });
}

void run_fallback(const std::string& graph, const NgraphIO& io) {
  py::gil_scoped_acquire gil;
  const size_t num_read = io.inputs.size() - io.num_states;
  py::list inputs, states, outputs;
  for (size_t i = 0; i < io.inputs.size(); ++i) {
    (i < num_read ? inputs : states).append(reference_to(io.inputs[i]));
  }
  for (auto* output : io.outputs) outputs.append(reference_to(output));
  const auto run = [&] { callback(PythonCallback::kRunFallback)(graph, inputs, states, outputs); };
  // Signals and Ctrl-C are deferred: neither may interrupt the fallback while it writes states.
  with_deferred_signals(DeferredSignals::Mode::kDeferred, run,
                        [](const py::error_already_set& error) {
                          if (error.matches(callback(PythonCallback::kError)))
                            throw NgraphError(message_of(error));
                          throw paddle_error(error);
                        });
  for (size_t i = 0; i < io.num_states; ++i) {
    if (io.state_outputs[i] != nullptr) *io.state_outputs[i] = *io.inputs[num_read + i];
  }
}

void run_legacy_operator(const std::string& text, const std::vector<phi::DenseTensor*>& inputs,
                         const std::vector<phi::DenseTensor*>& outputs, bool calls_python) {
  py::gil_scoped_acquire gil;
  py::list given, found;
  for (auto* tensor : inputs) given.append(reference_to(tensor));
  for (auto* tensor : outputs) found.append(reference_to(tensor));
  const auto run = [&] { callback(PythonCallback::kRunLegacyOperator)(text, given, found); };
  if (calls_python) {
    try {
      run();
    } catch (const py::error_already_set& error) {
      throw PythonInterrupt::from_user(error);
    }
    return;
  }
  with_deferred_signals(DeferredSignals::Mode::kDeferred, run,
                        [](const py::error_already_set& error) { throw paddle_error(error); });
}

void check_run(const std::string& graph, std::vector<phi::DenseTensor> given,
               std::vector<phi::DenseTensor> found, const GeneratorBefore& random,
               const std::vector<Digest>& weights) {
  with_python([&] {
    std::vector<std::string> digests;
    for (const auto& digest : weights) digests.push_back(digest.hex());
    callback(PythonCallback::kCheckRun)(graph, owned_list(std::move(given)),
                                        owned_list(std::move(found)), random.state,
                                        random.other_changes, digests);
    return true;
  });
}

void check_layer(const std::map<std::string, LayerAttribute>& attributes,
                 const std::map<std::string, std::vector<phi::DenseTensor>>& given,
                 const std::vector<phi::DenseTensor>& found, const GeneratorBefore& random) {
  with_python([&] {
    py::dict operands;
    for (const auto& [name, tensors] : given) operands[name.c_str()] = owned_list(tensors);
    callback(PythonCallback::kCheckLayer)(attributes, operands, owned_list(found), random.state,
                                          random.other_changes);
    return true;
  });
}

void profile_run(const std::string& graph, const std::vector<phi::DenseTensor>& given) {
  with_python([&] {
    callback(PythonCallback::kProfileRun)(graph, owned_list(given));
    return true;
  });
}

void skip_check(const std::string& reason) {
  with_python([&] {
    callback(PythonCallback::kSkipCheck)(reason);
    return true;
  });
}

bool creates_empty_tensor(const std::string& graph, const NgraphIO& io) {
  return with_python([&] {
    py::list given;
    for (auto* input : io.inputs) given.append(reference_to(input));
    return callback(PythonCallback::kCreatesEmptyTensor)(graph, given).cast<bool>();
  });
}

void deny_graph(const std::string& graph, const NgraphError& error) {
  with_python([&] {
    callback(PythonCallback::kDenyGraph)(graph, error.what(), static_cast<int>(error.code()),
                                         error.op_id());
    return true;
  });
}

void clear_failure(const std::string& graph) {
  with_python([&] {
    callback(PythonCallback::kClearFailure)(graph);
    return true;
  });
}

bool should_compile_in_background(const std::string& graph,
                                  const std::vector<phi::DenseTensor*>& inputs,
                                  int64_t fallback_us) {
  return with_python([&] {
    py::list shapes;
    for (const auto* tensor : inputs) shapes.append(shape_of(*tensor));
    return callback(PythonCallback::kShouldCompileInBackground)(graph, shapes, fallback_us)
        .cast<bool>();
  });
}

bool may_skip_compile(const std::string& graph) {
  return with_python([&] { return callback(PythonCallback::kMaySkipCompile)(graph).cast<bool>(); });
}

bool submit_compile_job(const std::shared_ptr<CompileJob>& job) {
  return with_python([&] { return callback(PythonCallback::kSubmitCompileJob)(job).cast<bool>(); });
}

void wait_for_compile_jobs() {
  with_python([&] {
    callback(PythonCallback::kWaitForCompileJobs)();
    return true;
  });
}

BuildWait wait_for_build(const std::shared_ptr<AwaitedBuild>& build, const std::string& graph) {
  return with_python([&] {
    const py::object is_over = callback(PythonCallback::kWaitForBuild)(build, graph);
    if (is_over.is_none()) return BuildWait::kInterrupted;
    return is_over.cast<bool>() ? BuildWait::kOver : BuildWait::kCallerBuilds;
  });
}

std::atomic<uint64_t>& denylist_version() {
  static std::atomic<uint64_t> count{1};
  return count;
}

}  // namespace paddle_ngraph
