// paddle_ngraph._core: Python bindings of the C++ core.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "paddle/phi/api/include/api.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/utils/pybind.h"

#include "core/common/blake3.h"
#include "core/common/caches.h"
#include "core/common/change_hash.h"
#include "core/common/deferred_signals.h"
#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/memory_pool.h"
#include "core/common/openvino_use.h"
#include "core/common/python_callbacks.h"
#include "core/common/threads.h"
#include "core/engine/awaited_build.h"
#include "core/engine/compile_job.h"
#include "core/engine/disk_cache.h"
#include "core/engine/engine_settings.h"
#include "core/engine/engines.h"
#include "core/engine/events.h"
#include "core/engine/files.h"
#include "core/engine/function_cache.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_engine.h"
#include "core/engine/size_guards.h"
#include "core/engine/verified_run.h"
#include "core/engine/work_spans.h"
#include "core/lazy/capture.h"
#include "core/ov/openvino_start.h"
#include "core/ov/operator_testing.h"
#include "core/ov/plugin_errors.h"
#include "core/ov/trim_memory.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/call_stacks.h"
#include "core/paddle/data_dependency_engine.h"
#include "core/paddle/exposure.h"
#include "core/paddle/flag_override.h"
#include "core/paddle/flags.h"
#include "core/paddle/gradient_gates.h"
#include "core/paddle/gradient_mode.h"
#include "core/paddle/handles.h"
#include "core/paddle/interruption.h"
#include "core/paddle/kernel_call.h"
#include "core/paddle/legacy_names.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/operator_serialization.h"
#include "core/paddle/optimizer_calls.h"
#include "core/paddle/owned_scope.h"
#include "core/paddle/phi_kernel.h"
#include "core/paddle/program_editor.h"
#include "core/paddle/program_fingerprint.h"
#include "core/paddle/python_lists.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/random.h"
#include "core/paddle/rows.h"
#include "core/paddle/scopes.h"
#include "core/paddle/shared_parameters.h"
#include "core/paddle/tensors.h"
#include "core/paddle/whole_program.h"
#include "mkl_packed/mkl_packed_ops.h"
#include "mkl_packed/packed_gemm.h"
#include "mkl_packed/packed_weights.h"
#include "mkl_packed/stragglers.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

static_assert(offsetof(TensorObject, tensor) == offsetof(paddle::pybind::TensorObject, tensor));

struct FlagUse {
  FlagOverride* flag;
  FlagOverride::Use use;
};

struct ProgramRunScope {
  bool may_write, is_of_thread;
  std::unique_ptr<ProgramRun> run;
};

// The state of the Python context manager that set_next_program_read_only describes.
struct ReadOnlyRun {};

py::bytes digest_bytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

Digest to_digest(const std::string& bytes) {
  Digest digest;
  if (bytes.size() != digest.bytes.size()) throw NgraphError("a key or digest has another size");
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

// NumPy's names of the dtypes that Paddle has too.
const std::vector<std::pair<std::string, paddle::DataType>>& numpy_dtypes() {
  static const auto table = [] {
    std::vector<std::pair<std::string, paddle::DataType>> rows;
    for (const auto& row : kElementTypes) {
      if (row.has_numpy_name) rows.emplace_back(row.paddle, phi::StringToDataType(row.paddle));
    }
    return rows;
  }();
  return table;
}

// Wraps `function` for calls by Paddle, which replaces exceptions by its own: the original
// exception is stored in the attribute `error` of `holder`. No signal handler runs between the call
// by Paddle and `function`, or after it.
py::object record_error_on(const py::object& function, const py::object& holder) {
  return py::cpp_function([function, holder](const py::args& args) -> py::object {
    try {
      return function(*args);
    } catch (const py::error_already_set& error) {
      holder.attr("error") = error.value();
      throw;
    }
  });
}

paddle::Tensor from_numpy(const py::array& array) {
  const auto contiguous = py::array::ensure(array, py::array::c_style);
  const std::vector<int64_t> shape(contiguous.shape(), contiguous.shape() + contiguous.ndim());
  const auto name = py::str(array.dtype().attr("name")).cast<std::string>();
  const auto dtype = dtype_named(name);
  if (dtype == phi::DataType::UNDEFINED) {
    throw NgraphError(concat("an array of dtype ", name, " cannot be an input of the engine"));
  }
  auto tensor = paddle::empty(shape, dtype, paddle::CPUPlace());
  if (contiguous.nbytes() > 0) std::memcpy(tensor.data(), contiguous.data(), contiguous.nbytes());
  return tensor;
}

std::string numpy_name(const phi::DenseTensor& tensor) {
  for (const auto& [name, dtype] : numpy_dtypes()) {
    if (dtype == tensor.dtype()) return name;
  }
  throw NgraphError(concat("NumPy has no dtype for ", tensor.dtype()));
}

std::vector<py::ssize_t> numpy_shape(const phi::DenseTensor& tensor) {
  const auto& dims = tensor.dims();
  std::vector<py::ssize_t> shape;
  for (int i = 0; i < dims.size(); ++i) shape.push_back(dims[i]);
  return shape;
}

py::array to_numpy(const phi::DenseTensor& tensor) {
  py::array array(py::dtype(numpy_name(tensor)), numpy_shape(tensor));
  if (array.nbytes() > 0) std::memcpy(array.mutable_data(), tensor.data(), array.nbytes());
  return array;
}

// Returns a NumPy array on the tensor's own memory; for a small tensor a copy, since the engine
// reuses the memory of small results.
py::array share_as_array(const phi::DenseTensor& tensor) {
  if (num_bytes(tensor) <= NgraphFunction::kMaxRecycledOutputBytes) return to_numpy(tensor);
  auto shared = std::make_unique<phi::DenseTensor>(tensor);
  void* data = shared->data();
  py::capsule owner(shared.get(), [](void* held) {
    const std::unique_ptr<phi::DenseTensor> dropped(static_cast<phi::DenseTensor*>(held));
  });
  shared.release();
  return py::array(py::dtype(numpy_name(tensor)), numpy_shape(tensor), data, owner);
}

// NumPy arrays that share the memory of `tensors`. Of several tensors at one address, only the
// first one is shared, and the others are copied.
std::vector<py::array> share_as_arrays(const std::vector<const phi::DenseTensor*>& tensors) {
  std::vector<py::array> arrays;
  std::set<const void*> shared_addresses;
  for (const auto* tensor : tensors) {
    const bool is_new = shared_addresses.insert(tensor->data()).second;
    arrays.push_back(is_new ? share_as_array(*tensor) : to_numpy(*tensor));
  }
  return arrays;
}

// The shape of the tensor of a predictor's handle, if it is of this dtype with at least `min_size`
// elements. None if Paddle raises an error, such as for a missing tensor: its own copy reports it.
// No instruction of Python runs here, so that an error is none of a signal handler.
std::optional<std::vector<int64_t>> large_shape(const py::handle& handle, int64_t min_size,
                                                const py::handle& dtype) {
  try {
    auto shape = handle.attr("shape")().cast<std::vector<int64_t>>();
    int64_t size = 1;
    for (const int64_t each : shape) size *= each;
    if (size >= min_size && handle.attr("type")().equal(dtype)) return shape;
  } catch (const py::error_already_set&) {  // Paddle's copy reports it
  }
  return std::nullopt;
}

// Replaces Paddle's `copy_to_cpu` for large tensors of float32: returns an array in memory of the
// pool, since the system would clear the pages of a new array first, which takes longer than the
// copy. None for other tensors.
py::object copy_from_handle(const py::handle& handle, int64_t min_size, const py::handle& float32) {
  const auto shape = large_shape(handle, min_size, float32);
  if (!shape) return py::none();
  const auto& tensor = handle.cast<const paddle_infer::Tensor&>();
  phi::DenseTensor copy =
      empty(phi::DenseTensorMeta(phi::DataType::FLOAT32, common::make_ddim(*shape)));
  {
    const py::gil_scoped_release released;
    tensor.CopyToCpu(copy.data<float>());
  }
  return share_as_array(copy);
}

// Paddle's dtype for a NumPy dtype, given by kind and item size; UNDEFINED if Paddle has none.
phi::DataType paddle_dtype(char kind, py::ssize_t size) {
  for (const auto& [name, dtype] : numpy_dtypes()) {
    if (kind == name[0] && size == static_cast<py::ssize_t>(phi::SizeOf(dtype))) return dtype;
  }
  return phi::DataType::UNDEFINED;
}

// Tensor on the array's own memory, valid during the lifetime of the array; std::nullopt if Paddle
// lacks the dtype or layout.
std::optional<phi::DenseTensor> view_of(const py::handle& value) {
  if (!py::isinstance<py::array>(value)) return std::nullopt;
  const auto array = py::reinterpret_borrow<py::array>(value);
  constexpr int kPlain = py::array::c_style | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((array.flags() & kPlain) != kPlain) return std::nullopt;
  const auto type = array.dtype();
  if (type.byteorder() == '>') return std::nullopt;
  const auto dtype = paddle_dtype(type.kind(), type.itemsize());
  if (dtype == phi::DataType::UNDEFINED) return std::nullopt;
  const std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  auto memory = std::make_shared<phi::Allocation>(const_cast<void*>(array.data()), array.nbytes(),
                                                  phi::CPUPlace());
  return phi::DenseTensor(memory, phi::DenseTensorMeta(dtype, common::make_ddim(shape)));
}

WholeProgram make_whole_program(
    const std::string& graph, std::vector<int> interval, std::vector<phi::DenseTensor*> tensors,
    const std::vector<std::tuple<size_t, std::string, std::vector<int64_t>>>& feeds,
    std::vector<size_t> fetches) {
  std::vector<WholeProgram::Feed> declared;
  for (const auto& [tensor, name, shape] : feeds) {
    declared.push_back({tensor, dtype_named(name), shape});
  }
  return {graph, std::move(interval), std::move(tensors), std::move(declared), std::move(fetches)};
}

std::optional<std::vector<phi::DenseTensor>> run_without_gil(const WholeProgram& program,
                                                             std::vector<phi::DenseTensor> fed) {
  const py::gil_scoped_release released;
  return program.run_on(std::move(fed));
}

// Calls WholeProgram::run_on(); returns the fetched tensors as NumPy arrays; nothing if the program
// cannot run on these feeds.
std::optional<std::vector<py::array>> run_on_arrays(const WholeProgram& program,
                                                    const py::list& feeds) {
  std::vector<phi::DenseTensor> fed;
  for (const auto& feed : feeds) {
    auto view = view_of(feed);
    if (!view) return std::nullopt;
    fed.push_back(std::move(*view));
  }
  const auto fetched = run_without_gil(program, std::move(fed));
  if (!fetched) return std::nullopt;
  std::vector<const phi::DenseTensor*> tensors;
  for (const auto& tensor : *fetched) tensors.push_back(&tensor);
  return share_as_arrays(tensors);
}

// Makes `target` a view of the array, valid during the lifetime of the array. Returns false, and
// does nothing, if the array is empty or differs from the declared dtype or shape.
bool view_array(phi::DenseTensor* target, const py::object& array, const std::string& dtype,
                const std::vector<int64_t>& shape) {
  auto view = view_of(array);
  if (!view || !is_as_declared(*view, dtype_named(dtype), shape)) return false;
  *target = std::move(*view);
  return true;
}

// A step of an execution plan that concatenates tensors along axis 0.
struct ConcatRows {
  std::vector<const phi::DenseTensor*> tensors;
};

// The function that computes a step: for None one that does nothing and returns no tensors, else
// one that calls an object of the core, or the method `run` of a Python object.
std::function<std::vector<phi::DenseTensor>()> step_of(const py::object& object) {
  using Tensors = std::vector<phi::DenseTensor>;
  if (object.is_none()) return [] { return Tensors(); };
  if (py::isinstance<WholeProgram>(object)) {
    return [program = object.cast<const WholeProgram*>()] { return program->run(); };
  }
  if (py::isinstance<ConcatRows>(object)) {
    return
        [rows = object.cast<const ConcatRows*>()] { return Tensors{concat_rows(rows->tensors)}; };
  }
  return [handle = object.ptr()] {
    const py::gil_scoped_acquire acquired;
    Tensors results;
    for (const auto& result : py::reinterpret_borrow<py::object>(handle).attr("run")()) {
      results.push_back(*result.cast<const phi::DenseTensor*>());
    }
    return results;
  };
}

std::unique_ptr<DataDependencyEngine> make_data_dependency_engine(
    const std::vector<std::tuple<py::object, std::vector<size_t>, std::vector<std::vector<int>>,
                                 std::vector<size_t>, std::vector<size_t>>>& steps,
    std::vector<phi::DenseTensor*> variables, const std::vector<size_t>& fetches) {
  std::vector<DataDependencyEngine::Step> made;
  for (const auto& [object, after, groups, reads, writes] : steps) {
    made.push_back({step_of(object), after, groups, reads, writes});
  }
  return std::make_unique<DataDependencyEngine>(std::move(made), std::move(variables), fetches);
}

// The dense tensor of a dynamic-mode tensor, which another object retains while the engine reads
// it; std::nullopt if operators would need another representation of it.
std::optional<phi::DenseTensor> borrowed_tensor(const paddle::Tensor& tensor) {
  if (!tensor.initialized() || !tensor.is_dense_tensor()) return std::nullopt;
  const auto& dense = static_cast<const phi::DenseTensor&>(*tensor.impl());
  if (!dense.meta().is_contiguous() || !tensor.is_cpu()) return std::nullopt;
  return dense;
}

// Calls WholeProgram::run_on(); returns the fetched tensors as tensors of dynamic mode.
std::optional<py::list> run_on_tensors(const WholeProgram& program, const py::list& tensors,
                                       const std::vector<std::string>& names) {
  std::vector<phi::DenseTensor> fed;
  fed.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    auto dense = borrowed_tensor(paddle::pybind::CastPyArg2Tensor(tensor.ptr(), 0));
    if (!dense) return std::nullopt;
    fed.push_back(std::move(*dense));
  }
  auto fetched = run_without_gil(program, std::move(fed));
  if (!fetched) return std::nullopt;
  py::list results;
  for (size_t i = 0; i < fetched->size(); ++i) {
    paddle::Tensor made(std::make_shared<phi::DenseTensor>(std::move((*fetched)[i])));
    made.set_name(names.at(i));
    results.append(py::reinterpret_steal<py::object>(paddle::pybind::ToPyObject(made)));
  }
  return results;
}

// Calls mkl_packed::infer(); returns the results as tensors of dynamic mode.
std::optional<py::list> infer_layer(const py::list& inputs, const py::object& lengths,
                                    const std::string& mode, int64_t hidden_size,
                                    int64_t num_layers, bool is_bidirectional) {
  std::vector<paddle::Tensor> tensors;
  tensors.reserve(inputs.size());
  for (const auto& input : inputs) {
    if (!is_tensor(input.ptr())) return std::nullopt;
    tensors.push_back(tensor_of(input.ptr()));
  }
  if (!lengths.is_none() && !is_tensor(lengths.ptr())) return std::nullopt;
  const auto results = mkl_packed::infer(
      tensors, lengths.is_none() ? nullptr : &tensor_of(lengths.ptr()),
      {mode, hidden_size, num_layers, is_bidirectional, 0.0f, 0, /*is_test=*/true});
  if (!results) return std::nullopt;
  py::list objects;
  for (const auto& result : *results) {
    objects.append(py::reinterpret_steal<py::object>(new_python_tensor(result)));
  }
  return objects;
}

// An NgraphIO that owns its tensors, copies of NumPy arrays: first the inputs, then the states.
class ArrayIO {
 public:
  ArrayIO(const NgraphEngine& engine, const std::vector<py::array>& arrays)
      : outputs_(engine.num_outputs()) {
    if (arrays.size() != engine.num_inputs()) {
      throw NgraphError(
          concat("this engine takes ", engine.num_inputs(), " arrays, got ", arrays.size()));
    }
    for (const auto& array : arrays) tensors_.push_back(from_numpy(array));
    for (auto& tensor : tensors_) io_.inputs.push_back(dense(tensor));
    for (auto& output : outputs_) io_.outputs.push_back(&output);
    io_.num_states = engine.num_states();
    io_.state_outputs.assign(io_.num_states, nullptr);
  }
  ArrayIO(const ArrayIO&) = delete;
  ArrayIO& operator=(const ArrayIO&) = delete;

  const NgraphIO& io() const { return io_; }

  // The outputs of a run, and then the new values of the states, as NumPy arrays.
  std::vector<py::array> results() const {
    std::vector<py::array> arrays;
    for (const auto& output : outputs_) arrays.push_back(to_numpy(output));
    for (size_t i = io_.inputs.size() - io_.num_states; i < io_.inputs.size(); ++i) {
      arrays.push_back(to_numpy(*io_.inputs[i]));
    }
    return arrays;
  }

 private:
  std::vector<paddle::Tensor> tensors_;
  std::vector<phi::DenseTensor> outputs_;
  NgraphIO io_;
};

// Builds a function of a graph without any cache, and runs it on copies of the inputs and states.
py::list run_new_function(const std::string& graph,
                          const std::vector<const phi::DenseTensor*>& tensors) {
  std::vector<phi::DenseTensor> results;
  {
    const py::gil_scoped_release released;
    const auto engine = NgraphEngine::of(graph);
    engine->require_inputs(tensors.size());
    std::vector<phi::DenseTensor> copies;
    for (const auto* tensor : tensors) {
      copies.push_back(tensor->initialized() ? copy_of(*tensor) : phi::DenseTensor());
    }
    results.resize(engine->num_outputs());
    NgraphIO io;
    for (auto& copy : copies) io.inputs.push_back(&copy);
    for (auto& result : results) io.outputs.push_back(&result);
    io.num_states = engine->num_states();
    io.state_outputs.assign(io.num_states, nullptr);
    engine->build_ng_function(io)->run(io);
    for (size_t i = copies.size() - io.num_states; i < copies.size(); ++i) {
      results.push_back(std::move(copies[i]));
    }
  }
  return copied_list(std::move(results));
}

struct ExclusiveSectionScope {
  std::unique_ptr<ExclusiveSection> section;
};

// Context manager of a capture. Inside another capture it adds to that one. SOT's callback for
// frames is off meanwhile: SOT must not translate the package's own frames. The callback is
// switched here, since a handler of a signal may raise between two instructions of Python.
class CaptureScope {
 public:
  // set_frame_callback: Paddle's function, which returns the callback set before.
  CaptureScope(std::shared_ptr<TraceCache> trace_cache, py::object set_frame_callback)
      : trace_cache_(std::move(trace_cache)), set_frame_callback_(std::move(set_frame_callback)) {}

  void enter() {
    frame_callback_ = set_frame_callback_(py::none());
    if (Capture::current() == nullptr) capture_ = std::make_unique<Capture>(trace_cache_);
  }

  void exit() {
    const auto capture = std::move(capture_);
    const bool is_computed = capture == nullptr || capture->flush(kEndOfFunction);
    if (capture != nullptr) capture->end();
    {
      const py::error_scope saved_error;
      set_frame_callback_(frame_callback_);
    }
    if (!is_computed) throw py::error_already_set();
  }

 private:
  std::shared_ptr<TraceCache> trace_cache_;
  py::object set_frame_callback_, frame_callback_;
  std::unique_ptr<Capture> capture_;
};

pir::Attribute attribute_of(const py::handle& value) {
  auto* context = pir::IrContext::Instance();
  if (py::isinstance<py::bool_>(value)) return pir::BoolAttribute::get(context, value.cast<bool>());
  if (py::isinstance<py::int_>(value)) return pir::Int32Attribute::get(context, value.cast<int>());
  if (py::isinstance<py::float_>(value)) {
    return pir::FloatAttribute::get(context, value.cast<float>());
  }
  return pir::StrAttribute::get(context, value.cast<std::string>());
}

// Python's insert_operator(), see program_editor.h; None among the operands is a null value.
std::vector<pir::Value> insert_operator_from_python(pir::Operation* anchor, const std::string& name,
                                                    const py::list& operands,
                                                    const std::vector<pir::Value>& like,
                                                    const py::dict& attributes) {
  std::vector<pir::Value> values;
  for (const auto& operand : operands) {
    values.push_back(operand.is_none() ? pir::Value() : operand.cast<pir::Value>());
  }
  pir::AttributeMap map;
  for (const auto& [key, value] : attributes) {
    map[key.cast<std::string>()] = attribute_of(value);
  }
  return insert_operator(anchor, name, values, like, map);
}

// Calls `function` with `threads` threads. Returns the division of the operators' loops: tuples of
// tasks, their work (multiplications), and the imbalance.
py::list call_with_threads(int threads, const py::function& function) {
  if (threads < 1) throw NgraphError(concat("there are no ", threads, " threads"));
  std::pair<const py::function&, std::exception_ptr> call{function, nullptr};
  const auto divided = run_with_threads(
      threads,
      [](void* data) {
        auto& [called, error] = *static_cast<decltype(call)*>(data);
        try {
          called();
        } catch (...) {
          error = std::current_exception();
        }
      },
      &call);
  if (call.second) std::rethrow_exception(call.second);
  py::list result;
  for (const auto& work : divided) {
    result.append(py::make_tuple(work.tasks, work.multiplies, work.imbalance));
  }
  return result;
}

// C function, which no signal handler can interrupt: an exception of a handler, such as Ctrl-C,
// would be lost there, since no caller can catch it.
py::cpp_function exposure_end_callback(py::dict references) {
  return py::cpp_function([references = std::move(references)](const py::object& reference) {
    references.attr("pop")(reference.attr("key"), py::none());
    end_exposure(reference.attr("number").cast<uint64_t>());
  });
}

// All live Python objects of one of Paddle's classes, from pybind11's table of instances.
py::list live_objects(const py::type& type) {
  py::list found;
  for (const auto& [address, instance] : py::detail::get_internals().registered_instances) {
    auto* object = reinterpret_cast<PyObject*>(instance);
    if (PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr()))) {
      found.append(py::reinterpret_borrow<py::object>(object));
    }
  }
  return found;
}

// Name, outcome, whether it is one of subgraphs, and sentence of each reason of events.
py::list reasons_of_events() {
  constexpr std::array<const char*, 4> kOutcomes = {"engine", "native", "raised", "function"};
  py::list rows;
  for (const auto& row : kReasons) {
    rows.append(py::make_tuple(row.name, kOutcomes.at(static_cast<size_t>(row.outcome)),
                               row.is_of_subgraph, row.sentence));
  }
  return rows;
}

// The number of events by reason; the quantities, and the bytes of the memory pool, by name.
std::pair<std::map<std::string, uint64_t>, std::map<std::string, uint64_t>> named_totals() {
  const Totals sums = totals();
  std::pair<std::map<std::string, uint64_t>, std::map<std::string, uint64_t>> named;
  for (size_t i = 0; i < kReasons.size(); ++i) named.first[kReasons[i].name] = sums.events[i];
  for (size_t i = 0; i < kQuantities.size(); ++i) {
    named.second[kQuantities[i]] = sums.quantities[i];
  }
  named.second["pool_bytes_live"] = MemoryPool::instance().live_bytes();
  named.second["pool_bytes_idle"] = MemoryPool::instance().idle_bytes();
  return named;
}

py::list events_for_python(size_t limit) {
  py::list rows;
  for (const auto& each : last_events(limit)) {
    rows.append(py::make_tuple(each.number, each.thread, each.subgraph,
                               static_cast<int>(each.reason), each.start_ns, each.num_ns));
  }
  return rows;
}

PyObject* python_ticks(PyObject* /*module*/, PyObject* /*none*/) {
  return PyLong_FromLongLong(ticks());
}

PyObject* python_record_event(PyObject* /*module*/, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "record_event() takes a reason, a program and a start");
    return nullptr;
  }
  const int64_t reason = PyLong_AsLongLong(arguments[0]);
  const uint64_t program = PyLong_AsUnsignedLongLong(arguments[1]);
  const int64_t start = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (reason < 0 || static_cast<size_t>(reason) >= kReasons.size()) {
    PyErr_SetString(PyExc_ValueError, "there is no such reason");
    return nullptr;
  }
  record_event(static_cast<Reason>(reason), program, start);
  Py_RETURN_NONE;
}

// Functions without pybind11, whose dispatch takes longer than they do.
std::array<PyMethodDef, 3> event_functions = {
    {{"ticks", python_ticks, METH_NOARGS, "The present time, for record_event()."},
     {"record_event",
      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(  // NOLINT
          python_record_event)),
      METH_FASTCALL, "Records a run of a program that began at `start` and ends now."},
     {nullptr, nullptr, 0, nullptr}}};

void define_events(py::module_* module) {
  if (PyModule_AddFunctions(module->ptr(), event_functions.data()) != 0) {
    throw py::error_already_set();
  }
  module->attr("reasons") = reasons_of_events();
  py::enum_<Reason> reasons(*module, "Reason", "The reason of an event.");
  for (size_t i = 0; i < kReasons.size(); ++i) {
    std::string name = kReasons.at(i).name;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    reasons.value(name.c_str(), static_cast<Reason>(i));
  }
  module->def("totals", &named_totals, "The number of events by reason, and other quantities.");
  module->def("reset_totals", [] {
    reset_totals();
    FunctionCache::instance().reset_counters();
  });
  module->def("events", &events_for_python, py::arg("limit"),
              "The last events: number, thread, subgraph, reason, start, nanoseconds.");
  module->def("next_program_id", &next_program_id);
  module->def(
      "engine_graphs",
      [](const std::set<uint64_t>& ids) { return Engines::instance().graphs_of(ids); },
      py::arg("ids"), py::call_guard<py::gil_scoped_release>(),
      "The ids and graph strings of those of these subgraphs that have an engine.");
  module->def(
      "set_profile", [](uint64_t number) { profile_number = number; }, py::arg("number"),
      "Begins to hand the inputs of one run of each engine to a profile; 0: ends this.");
  module->def(
      "take_work_spans",
      [] {
        py::list rows;
        for (const auto& each : take_work_spans()) {
          rows.append(py::make_tuple(kWorks[static_cast<size_t>(each.work)], each.thread,
                                     each.start_ns, each.num_ns));
        }
        return rows;
      },
      "The spans of work since the last call: work, thread, start, nanoseconds.");
  module->def("measure_event_ns", &measure_event_ns, py::arg("count"),
              py::call_guard<py::gil_scoped_release>(), "For benchmarks: events.h.");
}

py::dict cache_info() {
  const CacheInfo info = FunctionCache::instance().info();
  py::dict result;
  result["hits"] = info.hits;
  result["misses"] = info.misses;
  result["maxsize"] = info.maxsize;
  result["currsize"] = info.currsize;
  result["evictions"] = info.evictions;
  return result;
}

void clear_cache() {
  const auto* each = CacheDeclaration::first();
  for (; each != nullptr; each = each->next) {
    if (each->clear != nullptr) each->clear();
  }
  // Cleared last, since clearing the other caches may return memory to the pool.
  MemoryPool::instance().clear();
  trim_free_memory();
}

// (name, values, key, bound, how it is cleared, why it is not an LruMap, file) of each cache of the
// core.
std::vector<std::array<std::string, 7>> declared_caches() {
  std::vector<std::array<std::string, 7>> rows;
  const auto* each = CacheDeclaration::first();
  for (; each != nullptr; each = each->next) {
    rows.push_back({each->name, each->values, each->key, each->bound, each->cleared, each->reason,
                    each->file});
  }
  return rows;
}

// Sets Python's error to an exception of this type, with the message, code and operator of `error`.
void set_python_error(const py::handle& type, const NgraphError& error) {
  const py::object value = type(error.what());
  value.attr("code") = callback(PythonCallback::kErrorCode)(static_cast<int>(error.code()));
  value.attr("op_id") = error.op_id();
  PyErr_SetObject(type.ptr(), value.ptr());
}

// The error codes of the core, by their names in Python's ErrorCode.
std::map<std::string, int> error_codes() {
  return {{"GENERAL", static_cast<int>(ErrorCode::kGeneral)},
          {"INT32_OVERFLOW", static_cast<int>(ErrorCode::kInt32Overflow)},
          {"OUT_OF_BOUNDS", static_cast<int>(ErrorCode::kOutOfBounds)},
          {"KERNEL_FAILED", static_cast<int>(ErrorCode::kKernelFailed)}};
}

// The error that an operator threw, if the message of an exception of OpenVINO's bindings contains
// one: (message, code, op_id).
std::optional<std::tuple<std::string, int, int64_t>> operator_error(const std::string& message) {
  const auto found = found_invalid_input(message.c_str());
  if (!found) return std::nullopt;
  return std::make_tuple(std::string(found->what()), static_cast<int>(found->code()),
                         found->op_id());
}

std::map<std::string, size_t> table_sizes() {
  std::map<std::string, size_t> sizes;
  const auto* each = CacheDeclaration::first();
  for (; each != nullptr; each = each->next) {
    if (each->size != nullptr) sizes[each->name] = each->size();
  }
  return sizes;
}

}  // namespace

}  // namespace paddle_ngraph

PYBIND11_MODULE(_core, module) {
  using namespace paddle_ngraph;  // NOLINT
  DeferredSignals::initialize();
  set_paddle_kernels(&make_phi_kernel);
  py::module_::import("os").attr("register_at_fork")(
      py::arg("after_in_child") = py::cpp_function(&DeferredSignals::restore_after_fork));
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const PythonInterrupt& interruption) {
      interruption.restore();
    } catch (const InvalidInput& error) {
      set_python_error(py::handle(PyExc_ValueError), error);
    } catch (const NgraphError& error) {
      set_python_error(callback(PythonCallback::kError), error);
    } catch (const std::exception& error) {
      // Also catches exceptions from Paddle's functions, which may stand for an interruption.
      if (!restore_interruption(error.what())) throw;
    }
  });

  // Initializes pybind11's NumPy API now. At its first use, pybind11 would do so under a lock,
  // during which the GIL may be released: two concurrent first uses would deadlock.
  py::detail::npy_api::get();

  py::list flags;
  for (const auto& [name, value, meaning] : all_flags()) {
    flags.append(py::make_tuple(name, value, meaning));
  }
  module.attr("flags") = flags;
  module.attr("python_callbacks") = std::vector(kPythonCallbacks.begin(), kPythonCallbacks.end());
  module.attr("error_codes") = error_codes();
  module.attr("max_outputs") = kMaxOutputs;
  module.def("inplace_pairs", [](const pir::Operation& op) { return inplace_pairs(op); });
  module.def("insert_ngraph_engine", returning_copies(&insert_ngraph_engine), py::arg("block"),
             py::arg("anchor").none(true), py::arg("inputs"), py::arg("states"), py::arg("outputs"),
             py::arg("graph"), py::arg("interval"));
  module.def("insert_combine", &insert_combine, py::arg("anchor"), py::arg("values"));
  module.def("insert_split", returning_copies(&insert_split), py::arg("anchor"), py::arg("list"));
  module.def("insert_operator", returning_copies(&insert_operator_from_python), py::arg("anchor"),
             py::arg("name"), py::arg("operands"), py::arg("like"), py::arg("attributes"));
  module.def("replace_operator", &replace_operator, py::arg("op"), py::arg("name"),
             py::arg("operands"), py::return_value_policy::reference);
  module.def("add_carried_value", &add_carried_value, py::arg("op"), py::arg("value"),
             py::return_value_policy::reference);
  module.def("drop_carried_value", &drop_carried_value, py::arg("loop"), py::arg("index"),
             py::return_value_policy::reference);
  module.def("replace_contents", &replace_contents, py::arg("block"), py::arg("contents"));
  module.def("attributes_of", &attributes_of, py::arg("op"));
  module.def("prepare_for_cpu",
             py::overload_cast<const py::object&, const std::string&, int>(&prepare_for_cpu),
             py::arg("model"), py::arg("precision"), py::arg("threads"));
  module.def("call_stacks_of", &call_stacks_of, py::arg("block"));
  module.def("inherit_call_stack", &inherit_call_stack, py::arg("source"), py::arg("values"));
  module.def(
      "frames_of",
      [](uintptr_t call_stack) {
        std::vector<py::bytes> frames;  // a file may have other bytes than text
        for (const std::string& frame : frames_of(call_stack)) frames.emplace_back(frame);
        return frames;
      },
      py::arg("call_stack"));
  module.def("result_types", &result_types, py::arg("op"));
  module.def("inferred_types", &inferred_types, py::arg("op"));
  module.def("append_operator", &append_operator, py::arg("block"), py::arg("name"),
             py::arg("operands"), py::arg("types"), py::arg("attributes"),
             py::arg("before") = nullptr);
  module.def("append_while", &append_while, py::arg("block"), py::arg("condition"),
             py::arg("initial_values"));
  module.def("append_if", &append_if, py::arg("block"), py::arg("condition"), py::arg("types"));
  module.def("append_yield", &append_yield, py::arg("block"), py::arg("values"));
  module.def(
      "legacy_attribute_name", &legacy_attribute_name, py::arg("type"), py::arg("name"),
      "The name of an attribute of a PIR operator in the ProgramDesc operator of this type.");
  module.def("kernel_call", &kernel_call, py::arg("program"), py::arg("name"));
  module.def("impure_operators", &impure_operators);
  module.def("reason_against_kernel", &reason_against_kernel, py::arg("name"));
  module.def(
      "cpu_kernels",
      [] {
        py::dict found;
        for (const auto& [name, kernel] : cpu_kernels()) {
          found[py::str(name)] = py::make_tuple(kernel.operators, kernel.other_tensors);
        }
        return found;
      },
      "For each CPU kernel the operators that run it, and the kinds of its other tensors.");
  module.def(
      "record_kernel_memory",
      [](bool recording) {
        py::list found;
        for (auto& each : record_kernel_memory(recording)) {
          found.append(py::make_tuple(each.name, each.inputs, each.results));
        }
        return found;
      },
      py::arg("recording"), "Operator, addresses of operands and of results, of each call.");
  module.def("mode_attributes", &mode_attributes);
  module.def("append_variable", &append_variable, py::arg("block"), py::arg("name"),
             py::arg("type"), py::arg("before") = nullptr);
  module.def(
      "share_tensor",
      [](phi::DenseTensor* target, const phi::DenseTensor& source) { *target = source; },
      py::arg("target"), py::arg("source"), "Makes `target` share memory and LoD of `source`.");
  module.def("view_array", &view_array, py::arg("target"), py::arg("array"), py::arg("dtype"),
             py::arg("shape"),
             "Makes a tensor an array of the declared type; returns whether it has that type.");
  module.def("split_rows", &split_rows, py::arg("tensor"), py::arg("parts"),
             "Equal slices along axis 0, in the memory of the tensor.");
  module.def("share_as_arrays", &share_as_arrays, py::arg("tensors"), "Tensors as arrays.");
  module.def("copy_from_handle", &copy_from_handle, py::arg("handle"), py::arg("min_size"),
             py::arg("float32"),
             "The contents of a large float32 tensor of a predictor; None for other tensors.");
  module.def("program_fingerprint", &program_fingerprint, py::arg("program"));
  module.def(
      "program_digest",
      [](const pir::Program& program) {
        const Digest digest = program_digest(program);
        return py::bytes(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
      },
      py::arg("program"), "Equal for programs of equal contents, in one process.");
  py::class_<ProgramState>(module, "ProgramState", "A program as it was.")
      .def(py::init<const pir::Program&>(), py::arg("program"))
      .def("matches", &ProgramState::matches, py::arg("program"),
           "Whether `program` is the program of the snapshot, unchanged.");
  module.def("num_threads", &num_threads);
  module.def("settings", [](const std::string& graph) {
    const Settings settings = NgraphEngine::of(graph)->settings();
    return std::tuple(name_of(settings.precision), name_of(settings.weight_format),
                      threads_of(settings) / settings.streams, settings.streams);
  });
  module.def("operator_error", &operator_error, py::arg("message"),
             "The error of an operator in a message of OpenVINO: message, code and Op.id.");
  module.def("extension_op_names", &extension_op_names,
             "The names of the core's own nGraph operators.");
  module.def("run_with_threads", &call_with_threads, py::arg("threads"), py::arg("function"),
             "Calls a function in which these operators find so many threads. Returns how each of "
             "their loops was divided: the number of tasks, their work in multiplications, and "
             "the largest share of a thread over the mean.");
  module.def("allow_more_threads_than_cores", &allow_more_threads_than_cores, py::arg("allowed"),
             "For tests: use the requested number of threads, even if there are fewer cores.");
  module.def("root_scope", &root_scope, py::arg("scope"), "Addresses, in and out.");
  py::class_<RandomState>(module, "RandomState", "Paddle's random generator, as it is now.")
      .def(py::init())
      .def_static("of", &RandomState::of, py::arg("words"))
      .def("words", &RandomState::words)
      .def("restore", &RandomState::restore)
      .def("__eq__",
           [](const RandomState& state, const RandomState& other) { return state == other; });
  module.def("generator_changes_of_other_threads", &generator_changes_of_other_threads,
             "Changes of the random generator by other threads so far; -1 while one lasts.");
  struct ChangeScope {
    std::optional<GeneratorChange> change;
  };
  py::class_<ChangeScope>(module, "GeneratorChange", "While this thread changes the generator.")
      .def(py::init())
      .def("__enter__", [](ChangeScope& scope) { scope.change.emplace(); })
      .def("__exit__", [](ChangeScope& scope, const py::args&) { scope.change.reset(); });
  module.def(
      "digest_of",
      [](const phi::DenseTensor& tensor) {
        return digest_of(memory(tensor), num_bytes(tensor)).hex();
      },
      py::arg("tensor"), "The digest of the contents of a tensor, as WeightWatch computes it.");
  module.def("run_new_function", &run_new_function, py::arg("graph"), py::arg("tensors"),
             "Builds a function, and returns its outputs and new states for inputs and states.");
  module.def("guards_hold", &guards_hold, py::arg("words"), py::arg("sizes"));
  py::class_<OwnedScope>(module, "OwnedScope", "A scope of Paddle's that ends with this object.")
      .def(py::init<py::object, py::object>(), py::arg("scope"), py::arg("end"))
      .def_property_readonly("scope", &OwnedScope::scope)
      .def_property_readonly("user", &OwnedScope::user)
      .def("set_user", &OwnedScope::set_user, py::arg("user"));
  py::class_<FlagUse>(module, "FlagOverride",
                      "A flag of Paddle's executor inside `with`: switched, or as the user set it.")
      .def(py::init([](const std::string& name, bool user_value) {
             return FlagUse{&FlagOverride::of(name),
                            user_value ? FlagOverride::kUserValue : FlagOverride::kOverridden};
           }),
           py::arg("name"), py::arg("user_value") = false)
      .def(
          "__enter__", [](const FlagUse& flag_use) { flag_use.flag->enter(flag_use.use); },
          py::call_guard<py::gil_scoped_release>())
      .def("__exit__",
           [](const FlagUse& flag_use, const py::args&) { flag_use.flag->exit(flag_use.use); });
  module.def("observes_operators", &observes_operators,
             "Whether a profiler or a check observes operators.");
  py::class_<WholeProgram>(module, "WholeProgram",
                           "A program of nothing but one engine operator, without an interpreter.")
      .def(py::init(&make_whole_program), py::arg("graph"), py::arg("interval"), py::arg("tensors"),
           py::arg("feeds"), py::arg("fetches"))
      .def("run",
           [](const WholeProgram& program) {
             std::vector<phi::DenseTensor> fetched;
             {
               const py::gil_scoped_release released;
               fetched = program.run();
             }
             return copied_list(std::move(fetched));
           })
      .def("run_on", &run_on_arrays, py::arg("feeds"))
      .def("run_into", &WholeProgram::run_into, py::arg("targets"),
           py::call_guard<py::gil_scoped_release>())
      .def("run_on_tensors", &run_on_tensors, py::arg("feeds"), py::arg("names"));
  py::class_<ConcatRows>(module, "ConcatRows", "Concatenates tensors along axis 0.")
      .def(py::init([](std::vector<const phi::DenseTensor*> tensors) {
             return ConcatRows{std::move(tensors)};
           }),
           py::arg("tensors"), py::keep_alive<1, 2>())
      .def("run", [](const ConcatRows& rows) {
        std::vector<phi::DenseTensor> results;
        results.push_back(concat_rows(rows.tensors));
        return copied_list(std::move(results));
      });
  py::class_<DataDependencyEngine>(module, "DataDependencyEngine",
                                   "Steps, each run when its inputs are there.")
      .def(py::init(&make_data_dependency_engine), py::arg("steps"), py::arg("variables"),
           py::arg("fetches"), py::keep_alive<1, 2>(), py::keep_alive<1, 3>())
      .def(
          "run",
          [](DataDependencyEngine& engine, size_t threads) {
            std::vector<phi::DenseTensor> fetched;
            {
              const py::gil_scoped_release released;
              fetched = engine.run(threads);
            }
            return copied_list(std::move(fetched));
          },
          py::arg("threads"))
      .def_property_readonly("last_ms", &DataDependencyEngine::last_ms);
  py::class_<SharedParameters>(module, "SharedParameters",
                               "The parameters that a predictor and its clones share.")
      .def(py::init())
      .def("share", &SharedParameters::share, py::arg("name"), py::arg("tensor"),
           py::call_guard<py::gil_scoped_release>());
  module.def("cores_by_quota",
             py::overload_cast<const std::string&, const std::string&>(&cores_by_quota),
             py::arg("root"), py::arg("path"));
  module.def("cores_by_own_quota", py::overload_cast<>(&cores_by_quota));
  define_events(&module);
  module.def("cache_info", &cache_info);
  module.def("record_error_on", &record_error_on, py::arg("function"), py::arg("holder"));
  module.def("fail_at", &fail_at, py::arg("step"), py::arg("blocks") = false,
             "For tests: see core/common/fault_injection.h.");
  module.def(
      "num_blocked_threads", [] { return Fault::instance().blocked_threads.load(); },
      "The number of threads that wait at the selected step.");
  module.def(
      "reset_denylist", [] { ++denylist_version(); },
      "Clears the failures of all graphs: a converter has changed.");
  module.def("mark_weights_written", &mark_weights_written);
  module.def("num_weight_writers", &num_weight_writers,
             "The number of runs, and of objects, that may be writing weights now.");
  module.def("start_openvino", &start_openvino, py::call_guard<py::gil_scoped_release>(),
             "Starts the core's OpenVINO before Python code uses OpenVINO's plugin by itself.");
  module.def("is_openvino_lost", &is_openvino_lost,
             "Whether the process was forked while another thread used OpenVINO.");
  module.def("live_objects", &live_objects, py::arg("type"),
             "The objects of a class of Paddle's core that Python has.");
  module.def("record_exposure", &record_exposure, py::arg("tensor"),
             "Records that Python has an object of the tensor; returns the id of the object.");
  module.def("record_possible_exposure", &record_possible_exposure, py::arg("tensor"),
             "As record_exposure, for a tensor that may have been destroyed.");
  module.def("exposure_end_callback", &exposure_end_callback, py::arg("references"),
             "What references call when their object is gone: takes back their `number`, and them "
             "from the table, in which each has a `key`.");
  module.def("record_address_escape", &record_address_escape, py::arg("tensor"),
             "Records that the memory of the tensor may be written at any time.");
  module.def("is_memory_shared", &is_memory_shared, py::arg("written"), py::arg("others"),
             "Whether written tensors share memory with each other, or with others.");
  module.def("record_memory_escape", &record_memory_escape, py::arg("tensor"),
             "Records that the memory of the tensor was passed to code that may retain it.");
  py::enum_<WriteEffect>(module, "WriteEffect", "The possible writes of one of Paddle's functions.")
      .value("ARGUMENTS", WriteEffect::kArguments)
      .value("ANY_TENSOR", WriteEffect::kAnyTensor)
      .value("PROGRAM", WriteEffect::kProgram);
  py::enum_<CallEffect>(module, "CallEffect", "The effect of a call on a capture.")
      .value("GRAPH_BREAK", CallEffect::kGraphBreak)
      .value("DEFERRABLE", CallEffect::kDeferrable)
      .value("METADATA_ONLY", CallEffect::kMetadataOnly)
      .value("TRANSPARENT", CallEffect::kTransparent)
      .value("BREAK_IF_LAZY_ARGUMENT", CallEffect::kBreakIfLazyArgument)
      .value("EAGER_OPERATOR", CallEffect::kEagerOperator)
      .value("SHAPE_QUERY", CallEffect::kShapeQuery)
      .value("DATA_ACCESS", CallEffect::kDataAccess)
      .value("READ_ONLY_DATA_ACCESS", CallEffect::kReadOnlyDataAccess)
      .value("GRADIENT_HOOK", CallEffect::kGradientHook)
      .value("SAVED_TENSOR_HOOKS_ON", CallEffect::kSavedTensorHooksOn)
      .value("SAVED_TENSOR_HOOKS_OFF", CallEffect::kSavedTensorHooksOff)
      .value("TRACER_SWITCH", CallEffect::kTracerSwitch)
      .value("FLAG_CHANGE", CallEffect::kFlagChange);
  py::enum_<ValueRule::Kind>(module, "ValueRuleKind")
      .value("NONE", ValueRule::Kind::kNone)
      .value("ALONG_AXIS", ValueRule::Kind::kAlongAxis)
      .value("CLASS_IDS", ValueRule::Kind::kClassIds)
      .value("COORDINATES", ValueRule::Kind::kCoordinates)
      .value("INDEX_PER_AXIS", ValueRule::Kind::kIndexPerAxis)
      .value("SUBSCRIPT", ValueRule::Kind::kSubscript)
      .value("NONZERO_DIVISOR", ValueRule::Kind::kNonzeroDivisor)
      .value("SLICE_ASSIGNMENT", ValueRule::Kind::kSliceAssignment);
  py::class_<ValueRule>(module, "ValueRule", "The required range of an operator's integers.")
      .def(py::init([](ValueRule::Kind kind, size_t index_argument, size_t indexed_argument,
                       int axis_argument, int axis, bool from_end, int ignored_argument) {
             return ValueRule{kind, index_argument, indexed_argument, axis_argument,
                              axis, from_end,       ignored_argument};
           }),
           py::arg("kind") = ValueRule::Kind::kNone, py::arg("index_argument") = 0,
           py::arg("indexed_argument") = 0, py::arg("axis_argument") = -1, py::arg("axis") = 0,
           py::arg("from_end") = false, py::arg("ignored_argument") = -1);
  py::enum_<RangeRule::Kind>(module, "RangeRuleKind")
      .value("UNKNOWN", RangeRule::Kind::kUnknown)
      .value("PRESERVED", RangeRule::Kind::kPreserved)
      .value("STACKED", RangeRule::Kind::kStacked)
      .value("INDICES", RangeRule::Kind::kIndices)
      .value("SORTED", RangeRule::Kind::kSorted)
      .value("SUM", RangeRule::Kind::kSum)
      .value("DIFFERENCE", RangeRule::Kind::kDifference)
      .value("PRODUCT", RangeRule::Kind::kProduct)
      .value("QUOTIENT", RangeRule::Kind::kQuotient)
      .value("REMAINDER", RangeRule::Kind::kRemainder)
      .value("CLIPPED", RangeRule::Kind::kClipped);
  py::class_<RangeRule>(module, "RangeRule", "The range of an operator's integer results.")
      .def(py::init([](RangeRule::Kind kind, std::vector<size_t> sources, size_t axis_argument) {
             return RangeRule{kind, std::move(sources), axis_argument};
           }),
           py::arg("kind") = RangeRule::Kind::kUnknown, py::arg("sources") = std::vector<size_t>(),
           py::arg("axis_argument") = 1);
  py::enum_<ShapeRule::Kind>(module, "ShapeRuleKind",
                             "How the shapes of an operator's results follow from its arguments.")
      .value("UNKNOWN", ShapeRule::Kind::kUnknown)
      .value("SAME", ShapeRule::Kind::kSame)
      .value("ALL_SAME", ShapeRule::Kind::kAllSame)
      .value("FIRST_SAME", ShapeRule::Kind::kFirstSame)
      .value("BROADCAST", ShapeRule::Kind::kBroadcast)
      .value("RESHAPE", ShapeRule::Kind::kReshape)
      .value("TRANSPOSE", ShapeRule::Kind::kTranspose)
      .value("CONCAT", ShapeRule::Kind::kConcat)
      .value("STACK", ShapeRule::Kind::kStack)
      .value("SPLIT", ShapeRule::Kind::kSplit)
      .value("UNBIND", ShapeRule::Kind::kUnbind)
      .value("SQUEEZE", ShapeRule::Kind::kSqueeze)
      .value("UNSQUEEZE", ShapeRule::Kind::kUnsqueeze)
      .value("FLATTEN", ShapeRule::Kind::kFlatten)
      .value("EXPAND", ShapeRule::Kind::kExpand)
      .value("EXPAND_AS", ShapeRule::Kind::kExpandAs)
      .value("TILE", ShapeRule::Kind::kTile)
      .value("PAD", ShapeRule::Kind::kPad)
      .value("MATMUL", ShapeRule::Kind::kMatmul)
      .value("LINEAR", ShapeRule::Kind::kLinear)
      .value("SLICE", ShapeRule::Kind::kSlice)
      .value("SUBSCRIPT", ShapeRule::Kind::kSubscript)
      .value("REDUCTION", ShapeRule::Kind::kReduction)
      .value("TOP_K", ShapeRule::Kind::kTopK)
      .value("GATHER", ShapeRule::Kind::kGather)
      .value("GATHER_ND", ShapeRule::Kind::kGatherNd)
      .value("EMBEDDING", ShapeRule::Kind::kEmbedding)
      .value("ONE_HOT", ShapeRule::Kind::kOneHot)
      .value("LIKE_INDEX", ShapeRule::Kind::kLikeIndex)
      .value("CONVOLUTION", ShapeRule::Kind::kConvolution)
      .value("POOL", ShapeRule::Kind::kPool)
      .value("INTERPOLATION", ShapeRule::Kind::kInterpolation)
      .value("PIXEL_SHUFFLE", ShapeRule::Kind::kPixelShuffle)
      .value("PIXEL_UNSHUFFLE", ShapeRule::Kind::kPixelUnshuffle)
      .value("GRID_SAMPLE", ShapeRule::Kind::kGridSample)
      .value("RECURRENT", ShapeRule::Kind::kRecurrent)
      .value("DOT", ShapeRule::Kind::kDot)
      .value("MATRIX_VECTOR", ShapeRule::Kind::kMatrixVector)
      .value("SWIGLU", ShapeRule::Kind::kSwiglu)
      .value("DIVERGENCE", ShapeRule::Kind::kDivergence)
      .value("LIKELIHOOD", ShapeRule::Kind::kLikelihood)
      .value("EINSUM", ShapeRule::Kind::kEinsum)
      .value("TRANSPOSED_CONVOLUTION", ShapeRule::Kind::kTransposedConvolution)
      .value("UNFOLD", ShapeRule::Kind::kUnfold)
      .value("MESHGRID", ShapeRule::Kind::kMeshgrid)
      .value("REPEAT", ShapeRule::Kind::kRepeat)
      .value("CROSS_ENTROPY", ShapeRule::Kind::kCrossEntropy)
      .value("CLIP", ShapeRule::Kind::kClip)
      .value("ASSIGN", ShapeRule::Kind::kAssign)
      .value("FILL", ShapeRule::Kind::kFill)
      .value("INFERRED", ShapeRule::Kind::kInferred);
  py::class_<ShapeRule>(module, "ShapeRule", "The shapes of an operator's results.")
      .def(py::init([](ShapeRule::Kind kind, std::vector<std::string> parameters,
                       std::vector<std::string> sizes, std::vector<std::string> numbers,
                       std::vector<std::pair<std::string, py::object>> defaults) {
             return ShapeRule{kind, std::move(parameters), std::move(sizes), std::move(numbers),
                              std::move(defaults)};
           }),
           py::arg("kind") = ShapeRule::Kind::kUnknown,
           py::arg("parameters") = std::vector<std::string>(),
           py::arg("sizes") = std::vector<std::string>(),
           py::arg("numbers") = std::vector<std::string>(),
           py::arg("defaults") = std::vector<std::pair<std::string, py::object>>());
  py::enum_<Mutation>(module, "Mutation", "The part of its tensor that a method mutates.")
      .value("NONE", Mutation::kNone)
      .value("VALUES", Mutation::kValues)
      .value("STOP_GRADIENT", Mutation::kStopGradient)
      .value("LAYOUT", Mutation::kLayout);
  py::enum_<ListRule>(module, "ListRule", "How an operator joins a list of tensors.")
      .value("NONE", ListRule::kNone)
      .value("STACKED", ListRule::kStacked)
      .value("CONCATENATED", ListRule::kConcatenated)
      .value("SUMMED", ListRule::kSummed);
  py::class_<DeferralRule>(module, "DeferralRule",
                           "The conditions under which a call may be deferred.")
      .def(py::init([](size_t max_tensor_arguments, bool requires_floats,
                       std::vector<std::pair<size_t, py::object>> required_arguments,
                       std::vector<std::pair<size_t, py::object>> required_with_gradient,
                       ValueRule value_rule, RangeRule range_rule, int unread_argument,
                       bool has_reserve_space, bool is_stochastic, bool is_arithmetic,
                       Mutation mutation, std::vector<size_t> int_list_arguments,
                       ShapeRule shape_rule, ListRule list_rule) {
             return DeferralRule{max_tensor_arguments,
                                 requires_floats,
                                 std::move(required_arguments),
                                 std::move(required_with_gradient),
                                 value_rule,
                                 std::move(range_rule),
                                 unread_argument,
                                 has_reserve_space,
                                 is_stochastic,
                                 is_arithmetic,
                                 mutation,
                                 std::move(int_list_arguments),
                                 std::move(shape_rule),
                                 list_rule};
           }),
           py::arg("max_tensor_arguments") = 0, py::arg("requires_floats") = false,
           py::arg("required_arguments") = std::vector<std::pair<size_t, py::object>>(),
           py::arg("required_with_gradient") = std::vector<std::pair<size_t, py::object>>(),
           py::arg("value_rule") = ValueRule(), py::arg("range_rule") = RangeRule(),
           py::arg("unread_argument") = -1, py::arg("has_reserve_space") = false,
           py::arg("is_stochastic") = false, py::arg("is_arithmetic") = false,
           py::arg("mutation") = Mutation::kNone,
           py::arg("int_list_arguments") = std::vector<size_t>(),
           py::arg("shape_rule") = ShapeRule(), py::arg("list_rule") = ListRule::kNone)
      .def("mutating", [](DeferralRule rule, Mutation mutation) {
        rule.mutation = mutation;
        return rule;
      });
  module.def("set_call_effect", &set_call_effect, py::arg("function"), py::arg("name"),
             py::arg("effect"), py::arg("rule") = DeferralRule());
  module.def("intercept_attribute", &intercept_attribute, py::arg("attribute"), py::arg("name"),
             py::arg("get_is_passive"), py::arg("set_is_passive"));
  module.def("set_stop_gradient",
             [](const py::object& tensor, bool on) { set_stop_gradient(tensor.ptr(), on); });
  module.attr("END_OF_FUNCTION") = kEndOfFunction;
  module.attr("MAX_TRACES") = TraceCache::kMaxTraces;
  py::class_<ExclusiveSectionScope>(module, "ExclusiveSection",
                                    "Inside `with`, no other thread calls operators.")
      .def(py::init<>())
      .def("__enter__",
           [](ExclusiveSectionScope& scope) {
             scope.section = std::make_unique<ExclusiveSection>();
             return scope.section->is_exclusive();
           })
      .def("__exit__",
           [](ExclusiveSectionScope& scope, const py::args&) { scope.section.reset(); });
  py::class_<DeferredSignalsScope>(module, "DeferredSignals",
                                   "Inside `with`, no handler of a signal runs in this thread.")
      .def(py::init([](bool except_ctrl_c) {
             return std::make_unique<DeferredSignalsScope>(except_ctrl_c
                                                               ? DeferredSignals::Mode::kCtrlCRaises
                                                               : DeferredSignals::Mode::kDeferred);
           }),
           py::arg("except_ctrl_c") = false)
      .def_static(
          "inherited",
          [] { return std::make_unique<DeferredSignalsScope>(DeferredSignals::Mode::kInherited); })
      .def_static(
          "recognizing",
          [] { return std::make_unique<DeferredSignalsScope>(DeferredSignals::Mode::kRecognized); })
      .def_static("is_pending", &DeferredSignals::is_pending)
      .def_static("is_from_outside", &DeferredSignals::is_from_outside, py::arg("exception"))
      .def("__enter__", &DeferredSignalsScope::enter)
      .def("__exit__", [](DeferredSignalsScope& scope, const py::args&) { scope.exit(); });
  py::class_<GradientMode>(module, "GradientMode", "Inside `with`, operators have gradients.")
      .def(py::init<py::object, py::object, bool>(), py::arg("is_on"), py::arg("set"),
           py::arg("on"))
      .def("__enter__", &GradientMode::enter)
      .def("__exit__", [](const GradientMode& mode, const py::args&) { mode.exit(); });
  module.def("settings_version", &settings_version);
  module.def("tensor_versions", &tensor_versions, py::arg("tensors"));
  py::class_<RetainedNode>(module, "RetainedNode");
  py::class_<GradientGates>(module, "GradientGates")
      .def(py::init<const py::list&, const py::object&>(), py::arg("views"), py::arg("source"))
      .def("addresses", &GradientGates::addresses)
      .def("redirect", &GradientGates::redirect, py::arg("compute_sources"))
      .def("restore", &GradientGates::restore, py::arg("former"), py::arg("tensors"),
           py::arg("slots"));
  module.def(
      "is_capturing", [] { return Capture::current() != nullptr; },
      "Whether this thread captures operators.");
  module.def("flush_captures", [] {
    Capture* capture = Capture::current();
    if (capture != nullptr && !capture->flush("Python")) throw py::error_already_set();
  });
  py::class_<DeferredHook, std::shared_ptr<DeferredHook>>(
      module, "DeferredHook", "A hook on a gradient that is registered later.");
  py::class_<TracedValue>(module, "TracedValue", "A tensor of a path, by its number.")
      .def_readonly("index", &TracedValue::index);
  py::class_<TraceCache, std::shared_ptr<TraceCache>>(module, "TraceCache",
                                                      "The traces of a function.")
      .def(py::init<py::object, bool>(), py::arg("make_graph"), py::arg("trains"))
      .def_property_readonly("id", &TraceCache::id)
      .def_property_readonly("num_additions", &TraceCache::num_additions)
      .def("ends", &TraceCache::ends);
  py::class_<CaptureScope>(module, "Capture", "Inside `with`, this thread captures operators.")
      .def(py::init<std::shared_ptr<TraceCache>, py::object>(), py::arg("trace_cache"),
           py::arg("set_frame_callback"))
      .def("__enter__", &CaptureScope::enter)
      .def("__exit__", [](CaptureScope& scope, const py::args&) { scope.exit(); });
  module.def("intercept_calls", &intercept_calls, py::arg("function"), py::arg("effect"),
             "Treats calls of a C function as writes of the weights that it can reach.");
  module.def("is_replaceable", &is_replaceable, py::arg("function"),
             "Whether `replace_calls` can replace a C function.");
  module.def("original_of", &original_of, py::arg("function"),
             "A callable that stays this C function when it is replaced.");
  module.def("is_method_referenced", &is_method_referenced, py::arg("owner"), py::arg("name"),
             "Whether a call of a method of Paddle's core may be in progress.");
  module.def("replace_calls", &replace_calls, py::arg("function"), py::arg("replacement"),
             "Passes calls of a C function, through any reference to it, to a Python function.");
  module.def("are_calls_intercepted", &are_calls_intercepted, py::arg("function"));
  module.def("replace_optimizer_kernel", &replace_optimizer_kernel, py::arg("function"),
             py::arg("name"), py::arg("tracer"),
             "Computes an operator of dynamic-mode optimizers on all threads.");
  py::class_<ReadOnlyRun>(module, "ReadOnlyRun",
                          "Inside `with`, the next program of this thread writes no argument.")
      .def(py::init())
      .def("__enter__", [](const ReadOnlyRun&) { set_next_program_read_only(true); })
      .def("__exit__",
           [](const ReadOnlyRun&, const py::args&) { set_next_program_read_only(false); });
  py::class_<ProgramRunScope>(module, "ProgramRun", "Inside `with`, a run of a program.")
      .def(py::init([](bool may_write, bool is_of_thread) {
             return ProgramRunScope{may_write, is_of_thread, nullptr};
           }),
           py::arg("may_write"), py::arg("is_of_thread") = true)
      .def("__enter__",
           [](ProgramRunScope& scope) {
             scope.run = std::make_unique<ProgramRun>(scope.may_write, scope.is_of_thread);
           })
      .def("__exit__", [](ProgramRunScope& scope, const py::args&) { scope.run.reset(); });
  module.def(
      "digest",
      [](const std::string& data, const std::string& key) {
        if (key.empty()) return digest_bytes(digest_of(data));
        return digest_bytes(keyed_digest_of(to_digest(key), data.data(), data.size()));
      },
      py::arg("data"), py::arg("key") = "", "The BLAKE3 digest of bytes, keyed if a key is given.");
  module.def(
      "change_hash", [](const std::string& data) { return change_hash(data.data(), data.size()); },
      py::arg("data"), "The hash by which this process detects changes.");
  module.def(
      "is_graph_stored",
      [](const std::string& graph, const std::string& environment) {
        return is_graph_stored(disk_key_of_graph(graph, environment));
      },
      py::arg("graph"), py::arg("environment"), "Whether a function of the graph is on disk.");
  module.def(
      "add_model_folder",
      [](const std::string& folder, uint32_t owner, const py::bytes& identity,
         const std::vector<std::string>& graphs, const std::vector<py::bytes>& weights) {
        ModelFolder model{folder, owner, to_digest(identity), {graphs.begin(), graphs.end()}, {}};
        for (const auto& weight : weights) model.weights.insert(to_digest(weight));
        add_model_folder(std::move(model));
      },
      py::arg("folder"), py::arg("owner"), py::arg("identity"), py::arg("graphs"),
      py::arg("weights"),
      "Looks for functions of a model of this owner in this folder, too: "
      "core/engine/disk_cache.h.");
  module.def(
      "find_bytes",
      [](const std::string& key) -> std::optional<py::bytes> {
        std::optional<std::string> found;
        {
          py::gil_scoped_release release;
          found = find_bytes(key);
        }
        if (!found) return std::nullopt;
        return py::bytes(*found);
      },
      py::arg("key"), "A result in FLAGS_ngraph_cache_dir; None if there is none.");
  module.def("store_bytes", &store_bytes, py::arg("key"), py::arg("bytes"),
             py::call_guard<py::gil_scoped_release>(),
             "Stores a result in FLAGS_ngraph_cache_dir, if that is possible.");
  module.def("cache_files", &cache_files, "The paths of functions in FLAGS_ngraph_cache_dir.");
  module.def(
      "digests_in_file",
      [](const std::string& path, const std::vector<std::pair<size_t, size_t>>& parts) {
        std::vector<FileRange> ranges;
        for (const auto& [begin, num_bytes] : parts) ranges.push_back({begin, num_bytes});
        std::vector<Digest> digests;
        {
          py::gil_scoped_release release;
          digests = digests_in_file(path, ranges);
        }
        std::vector<py::bytes> all;
        for (const auto& digest : digests) all.push_back(digest_bytes(digest));
        return all;
      },
      py::arg("path"), py::arg("parts"), "The digests of parts (offset, size) of a file.");
  module.def("clear_cache", &clear_cache, "Releases the memory that is retained between runs.");
  module.def("caches", &declared_caches, "The caches of the core: docs/reference/caches.md.");
  module.def("table_sizes", &table_sizes, "The sizes of the caches, by name.");

  auto packed = module.def_submodule("mkl_packed", "Packed recurrent layers.");
  packed.def("pack_count", &mkl_packed::pack_count);
  packed.def("set_packing", &mkl_packed::set_packing, py::arg("on"));
  packed.def("clear_packed_weights", &mkl_packed::clear_packed_weights);
  packed.def("provider", [] { return std::string(mkl_packed::provider().name()); });
  packed.def("is_straggling", &mkl_packed::is_straggling);
  packed.def(
      "run_single_threaded_for",
      [](double seconds) {
        mkl_packed::run_single_threaded_for(
            std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
      },
      py::arg("seconds"));
  packed.def("why_unavailable", &mkl_packed::why_unavailable, py::arg("provider"));
  packed.def("infer", &infer_layer, py::arg("inputs"), py::arg("lengths"), py::arg("mode"),
             py::arg("hidden_size"), py::arg("num_layers"), py::arg("is_bidirectional"),
             "Runs a layer without a gradient; None: the custom operator has to run.");

  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<NgraphEngine, std::shared_ptr<NgraphEngine>>(
      module, "NgraphEngine", "Runs one graph string, for an operator ngraph_engine.")
      .def(py::init([](const std::string& graph) {
             // Releases the GIL only for this call. A call guard would not do: pybind11 registers
             // the object after the call.
             const py::gil_scoped_release released;
             return NgraphEngine::of(graph);
           }),
           py::arg("graph"))
      .def(
          "begin_collection",
          [](NgraphEngine& engine, const std::string& folder, const py::bytes& identity) {
            engine.begin_collection(folder, to_digest(identity));
          },
          py::arg("folder"), py::arg("identity"),
          "Functions are built anew from now on, and stored in this folder.")
      .def("end_collection", &NgraphEngine::end_collection, "What went wrong, if anything.")
      .def_property_readonly("num_inputs", &NgraphEngine::num_inputs)
      .def_property_readonly("num_states", &NgraphEngine::num_states)
      .def_property_readonly("num_outputs", &NgraphEngine::num_outputs)
      .def(
          "build_ng_io",
          [](const NgraphEngine& engine, const std::vector<py::array>& arrays) {
            return std::make_unique<ArrayIO>(engine, arrays);
          },
          py::arg("arrays"),
          "Tensors for one run: the inputs, then the states, copied from arrays.")
      .def(
          "get_ng_function",
          [](NgraphEngine& engine, const ArrayIO& io) { return engine.get_ng_function(io.io()); },
          py::arg("io"), release, "The function for these shapes and dtypes, cached or built.")
      .def(
          "load_ng_function",
          [](NgraphEngine& engine, const ArrayIO& io) { return engine.load_ng_function(io.io()); },
          py::arg("io"), release, "The function on disk, or None; cached functions are dropped.")
      .def(
          "build_ng_function",
          [](NgraphEngine& engine, const ArrayIO& io) { return engine.build_ng_function(io.io()); },
          py::arg("io"), release, "A newly built function; the cache is left alone.")
      .def(
          "run", [](NgraphEngine& engine, const ArrayIO& io) { engine.run(io.io()); },
          py::arg("io"), release, "Gets the function and executes it.");

  py::class_<CompileJob, std::shared_ptr<CompileJob>>(
      module, "CompileJob", "A function that is to be built in the background.")
      .def("build", &CompileJob::build, release,
           "Builds and keeps it. What that throws, the next run throws that needs it.")
      .def("cancel", &CompileJob::cancel, "From here on nothing becomes of it.")
      .def_property_readonly("graph", &CompileJob::graph);

  py::class_<AwaitedBuild, std::shared_ptr<AwaitedBuild>>(
      module, "AwaitedBuild", "A build in a thread, for a run that waits for it.")
      .def("begin", &AwaitedBuild::begin)
      .def("cancel", &AwaitedBuild::cancel)
      .def("build", &AwaitedBuild::build, release)
      .def("wait", &AwaitedBuild::wait, release, py::arg("seconds"));

  py::class_<NgraphFunction, std::shared_ptr<NgraphFunction>>(module, "NgraphFunction",
                                                              "A compiled function.")
      .def(
          "run", [](const NgraphFunction& function, const ArrayIO& io) { function.run(io.io()); },
          py::arg("io"), release, "Executes the function.");

  py::class_<ArrayIO>(module, "NgraphIO", "The tensors of one run.")
      .def("results", &ArrayIO::results, "The outputs, then the states, as arrays.");
}
