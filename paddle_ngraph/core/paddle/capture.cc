#include "core/paddle/capture.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/caches.h"
#include "core/common/deferred_signals.h"
#include "core/common/error.h"
#include "core/common/python_callbacks.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/exposure.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

const CacheDeclaration traces_declaration(
    "traces", "traces of a dynamic layer's calls, and their graphs",
    "the intercepted calls in order, with attributes and metadata of tensors",
    "60,000 traces and 256 graphs for each layer; all are dropped at the bound",
    "a change of settings, or the end of the layer",
    "a tree: traces share the calls that they begin with");

constexpr size_t kMaxTraceValues = 4096;

thread_local Capture* current_capture = nullptr;
thread_local bool saved_tensor_hooks_active = false;
// Number of changes of settings, such as flags, on which recorded operators depend; guarded by the
// GIL.
uint64_t current_settings_version = 0;

// For each lazy tensor, the capture that computes it, and has a reference to it. Guarded by the
// GIL.
std::unordered_map<PyObject*, Capture*>& lazy_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, Capture*>();
  return *tensors;
}

// For each memory that deferred calls will read, the captures of these calls, which pin the memory.
// Guarded by the GIL.
std::unordered_map<const phi::Allocation*, std::vector<Capture*>>& readers() {
  static auto* const captures =
      new std::unordered_map<const phi::Allocation*, std::vector<Capture*>>();
  return *captures;
}

// The tensors whose deferred computation failed, each with the text of the error. Never removed.
std::unordered_map<PyObject*, std::string>& failed_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, std::string>();
  return *tensors;
}

// Pauses Python's garbage collector during its lifetime. Finalizers may call Paddle, in any thread:
// such a call would wait for the tensors that are being computed, or end up in a program.
class GcPause {
 public:
  GcPause() {
    if (num_pauses++ == 0) was_enabled = set_gc_enabled(false);
    ++num_thread_pauses;
  }
  ~GcPause() {
    --num_thread_pauses;
    if (--num_pauses == 0 && was_enabled) set_gc_enabled(true);
  }
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

  // Ends the pauses of other threads in a forked process, where only the thread that called fork()
  // exists.
  static void reset_after_fork() {
    if (num_pauses > 0 && num_thread_pauses == 0 && was_enabled) set_gc_enabled(true);
    num_pauses = num_thread_pauses;
  }

 private:
  // Switches Python's garbage collector on or off; returns whether it was on.
  static bool set_gc_enabled(bool on) {
#if PY_VERSION_HEX >= 0x030A0000
    return (on ? PyGC_Enable() : PyGC_Disable()) == 1;
#else  // this Python has no C function for the switch that may be called after a fork
    static_cast<void>(on);
    return false;
#endif
  }

  // Members below, guarded by the GIL: nested pauses, and whether the collector was on before.
  static inline int num_pauses = 0;
  static inline bool was_enabled = false;
  static inline thread_local int num_thread_pauses = 0;
};

bool is_lazy(PyObject* tensor) {
  return !lazy_tensors().empty() && lazy_tensors().count(tensor) > 0;
}

bool get_flag(PyObject* object, const char* name) {
  const py::object flag = py::reinterpret_borrow<py::object>(object).attr(name);
  return flag.ptr() == Py_True;
}

bool stops_gradient(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
  const auto flag = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, name));
  if (!flag) throw py::error_already_set();
  return flag.ptr() == Py_True;
}

// The dense CPU tensor behind a Python tensor; null for other kinds of tensors, and without memory
// or elements.
const phi::DenseTensor* plain_tensor(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto* tensor = static_cast<const phi::DenseTensor*>(base.get());
  if (tensor->Holder() == nullptr || tensor->numel() == 0) return nullptr;
  return tensor->place().GetType() == phi::AllocationType::CPU ? tensor : nullptr;
}

// The dtype, shape and flags of an argument or result, for the trace; nothing if the tensor cannot
// be part of a graph.
std::optional<TracedTensorMeta> traced_meta(PyObject* object) {
  // A lazy tensor of another thread is not part of this thread's graph.
  if (is_lazy(object)) return std::nullopt;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || has_escaped(*tensor)) return std::nullopt;
  return TracedTensorMeta{tensor->dtype(),
                          tensor->dims(),
                          stops_gradient(object),
                          tensor->meta().is_contiguous(),
                          Py_TYPE(object)->tp_base != &PyBaseObject_Type,
                          tensor->strides()};
}

// Whether an object is a tensor without memory, as some operators return in some modes.
bool is_uninitialized(PyObject* object, bool allow_lazy = false) {
  if (!is_tensor(object) || (is_lazy(object) && !allow_lazy)) return false;
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !base->initialized()) return true;
  if (!phi::DenseTensor::classof(base.get()) || base->numel() == 0) return false;
  return static_cast<const phi::DenseTensor&>(*base).Holder()->ptr() == nullptr;
}

// The dtype and shape of a tensor that has no elements, and so needs no memory; else null.
std::shared_ptr<const phi::DenseTensorMeta> empty_meta(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto& tensor = static_cast<const phi::DenseTensor&>(*base);
  if (tensor.dims().size() <= 0 || tensor.numel() != 0) return nullptr;
  return std::make_shared<phi::DenseTensorMeta>(tensor.dtype(), tensor.dims());
}

// Creates a tensor object without memory, which is lazy or has no elements.
py::object make_tensor(const phi::DenseTensorMeta& meta, bool stop_gradient) {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>(
      std::make_shared<phi::Allocation>(nullptr, 0, phi::CPUPlace()), meta));
  auto tensor = py::reinterpret_steal<py::object>(new_python_tensor(made));
  if (!stop_gradient) {
    static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
    const NoCapture none;
    if (PyObject_SetAttr(tensor.ptr(), name, Py_False) != 0) throw py::error_already_set();
  }
  return tensor;
}

bool is_integer_dtype(phi::DataType dtype) {
  return dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32 ||
         dtype == phi::DataType::BOOL || dtype == phi::DataType::UINT8 ||
         dtype == phi::DataType::INT8 || dtype == phi::DataType::INT16;
}

bool is_slice(PyObject* object) { return PySlice_Check(object); }

bool is_of_type(PyObject* object, const char* name) {
  return std::string(Py_TYPE(object)->tp_name).find(name) != std::string::npos;
}

// Whether an object is Paddle's CPUPlace, or a Place for the CPU.
bool is_cpu_place(PyObject* object) {
  if (is_of_type(object, "CPUPlace")) return true;
  return is_of_type(object, ".Place") &&
         py::reinterpret_borrow<py::object>(object).attr("is_cpu_place")().ptr() == Py_True;
}

// Whether an object is a constant of a trace, which is compared by value, not by identity.
bool is_constant(PyObject* object) {
  if (object == Py_None || object == Py_Ellipsis || PyBool_Check(object)) return true;
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) ||
         is_of_type(object, "DataType") || is_cpu_place(object);
}

// Whether an object is a scalar of NumPy or Paddle that operators treat as a Python scalar. Other
// NumPy scalars are not: Python scalars are converted to the dtype of the tensor, NumPy's may be
// promoted differently.
bool is_foreign_number(PyObject* object) {
  constexpr std::array<const char*, 2> kNames{"numpy.float64", "TensorSize"};
  return std::any_of(kNames.begin(), kNames.end(), [object](const char* name) {
    return std::strcmp(Py_TYPE(object)->tp_name, name) == 0;
  });
}

py::object to_python_number(PyObject* number) {
  auto plain = py::reinterpret_steal<py::object>(PyIndex_Check(number) ? PyNumber_Long(number)
                                                                       : PyNumber_Float(number));
  if (!plain) throw py::error_already_set();
  return plain;
}

bool equals_constant(const Argument& constant, PyObject* given) {
  PyObject* expected = constant.constant.ptr();
  if (expected == given) return true;
  if (Py_TYPE(expected) != Py_TYPE(given)) {
    return is_foreign_number(given) && equals_constant(constant, to_python_number(given).ptr());
  }
  if (constant.is_any_of_type) return is_cpu_place(given);
  if (PyFloat_CheckExact(expected)) {
    const double one = PyFloat_AS_DOUBLE(expected), other = PyFloat_AS_DOUBLE(given);
    return std::memcmp(&one, &other, sizeof(one)) == 0;
  }
  const int is_equal = PyObject_RichCompareBool(expected, given, Py_EQ);
  if (is_equal < 0) throw py::error_already_set();
  return is_equal == 1;
}

// A reason for a graph break, followed by the user's line of Python: the innermost one outside
// Paddle, the plugin's frontends and generated code.
std::string with_user_line(const std::string& reason) {
  if (reason == kEndOfFunction) return reason;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const std::string file = py::str(frame.attr("f_code").attr("co_filename"));
    const bool is_ours = file.find("/paddle_ngraph/frontends/") != std::string::npos;
    if (file.find("/paddle/") == std::string::npos && file.find("<") != 0 && !is_ours) {
      return concat(reason, " (", file, ", line ", std::string(py::str(frame.attr("f_lineno"))),
                    ")");
    }
    frame = frame.attr("f_back");
  }
  return reason;
}

bool is_sequence(PyObject* object) {
  return PyList_Check(object) || PyTuple_Check(object) || is_slice(object);
}

// The type of a list, tuple or slice in a trace; list for Paddle's `Size`, a shape.
PyTypeObject* sequence_type(PyObject* items) {
  return is_of_type(items, "libpaddle.Size") ? &PyList_Type : Py_TYPE(items);
}

// The items of a list, tuple or slice; null for an absent bound of a slice.
std::vector<PyObject*> sequence_items(PyObject* items) {
  if (is_slice(items)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(items);
    return {slice->start, slice->stop, slice->step};
  }
  PyObject** first = PySequence_Fast_ITEMS(items);
  return {first, first + PySequence_Fast_GET_SIZE(items)};
}

// Calls `visit` with all tensors within an argument; returns false if the nesting is too deep.
template <typename Visit>
bool visit_tensors(PyObject* argument, const Visit& visit, int depth = 0) {
  constexpr int kMaxDepth = 4;
  if (depth > kMaxDepth) return false;
  if (is_sequence(argument)) {
    for (PyObject* member : sequence_items(argument)) {
      if (!visit_tensors(member, visit, depth + 1)) return false;
    }
  } else if (is_tensor(argument)) {
    visit(argument);
  }
  return true;
}

// A fast check for most arguments and list items. True: neither a tensor nor a NumPy object.
bool is_plain_python(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyBool_Check(object) || PyUnicode_CheckExact(object);
}

// Whether an object is a NumPy scalar: int64 or int32 if `is_whole`, else float32 or float16
// (float64: is_foreign_number).
bool is_numpy_number(PyObject* object, bool is_whole) {
  const char* name = Py_TYPE(object)->tp_name;
  if (std::strncmp(name, "numpy.", 6) != 0) return false;
  const std::string kind = name + 6;
  return is_whole ? kind == "int64" || kind == "int32" : kind == "float32" || kind == "float16";
}

// Whether an operator treats a NumPy scalar as the equal Python scalar. Arithmetic operators treat
// a scalar as a tensor of the dtype of the other tensor, of shape [1] in powers.
bool is_taken_as_python_number(PyObject* object, const InterceptedFunction& function,
                               PyObject* first_argument) {
  const bool is_whole = is_numpy_number(object, true);
  if (!is_whole && !is_numpy_number(object, false)) return false;
  if (!function.rule.is_arithmetic) return true;
  if (!is_tensor(first_argument)) return false;
  const auto dtype = tensor_of(first_argument).dtype();
  if (dtype == phi::DataType::FLOAT32 || dtype == phi::DataType::FLOAT64) {
    return is_whole || function.name != "__pow__";
  }
  return is_whole && (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32);
}

// Whether an object is a NumPy array of integers, with a number of dimensions in this range.
bool is_integer_array(PyObject* object, int min_dimensions, int max_dimensions) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const bool is_known = array.dtype().kind() == 'i' && array.itemsize() >= 4;
  return is_known && array.ndim() >= min_dimensions && array.ndim() <= max_dimensions;
}

}  // namespace

bool TracedTensorMeta::operator==(const TracedTensorMeta& other) const {
  return dtype == other.dtype && shape == other.shape && stop_gradient == other.stop_gradient &&
         is_contiguous == other.is_contiguous && is_parameter == other.is_parameter &&
         strides == other.strides;
}

// -- traces --------------------------------------------------------------------------------------

TraceCache::TraceCache(py::object make_graph, bool trains)
    : root_(std::make_shared<TraceNode>()),
      make_graph_(std::move(make_graph)),
      trains_(trains),
      id_(next_program_id()) {}

const std::shared_ptr<TraceNode>& TraceCache::root() {
  if (settings_version_ != current_settings_version) clear();
  settings_version_ = current_settings_version;
  return root_;
}

void TraceCache::count_trace() {
  if (++num_traces_ == kMaxTraces) clear_traces();
}

void TraceCache::count_graph() {
  if (++graphs_ == kMaxGraphs) clear();
}

// Drops all traces, so that traces are recorded anew. Calls in progress retain their nodes, and the
// groups their patterns, which traces use that recur.
void TraceCache::clear_traces() {
  num_traces_ = 0;
  for (auto& [number, group] : groups_) group.ends.clear();
  root_ = std::make_shared<TraceNode>();
}

void TraceCache::clear() {
  clear_traces();
  graphs_ = 0;
  // The groups are destroyed at the end of the scope, when all members are consistent: their
  // destructors may call Python.
  const auto freed = std::exchange(groups_, {});
}

namespace {

std::vector<TraceNode*> nodes_to(const TraceNode* node) {
  std::vector<TraceNode*> found;
  for (; node->parent != nullptr; node = node->parent) {
    found.push_back(const_cast<TraceNode*>(node));
  }
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<const TracedCall*> calls_of(const TraceNode& node) {
  std::vector<const TracedCall*> calls;
  for (const TraceNode* each : nodes_to(&node)) calls.push_back(&each->call);
  return calls;
}

std::vector<phi::DDim> shapes_of(const TraceNode& node) {
  std::vector<phi::DDim> shapes;
  for (const TracedCall* call : calls_of(node)) {
    for (const TracedTensorMeta& kind : call->metas) shapes.push_back(kind.shape);
  }
  return shapes;
}

bool is_similar(const Argument& one, const Argument& other) {
  if (one.kind != other.kind) return false;
  switch (one.kind) {
    case Argument::Kind::kValue:
      return one.value == other.value;
    case Argument::Kind::kConstant:
      return equals_constant(one, other.constant.ptr());
    case Argument::Kind::kUninitialized:
      return one.empty == other.empty ||
             (one.empty != nullptr && other.empty != nullptr && *one.empty == *other.empty);
    case Argument::Kind::kSequence:
      break;
  }
  return one.type == other.type &&
         std::equal(one.items.begin(), one.items.end(), other.items.begin(), other.items.end(),
                    [](const auto& a, const auto& b) { return is_similar(a, b); });
}

bool is_similar(const TracedTensorMeta& one, const TracedTensorMeta& other) {
  return one.dtype == other.dtype && one.shape.size() == other.shape.size() &&
         one.stop_gradient == other.stop_gradient && one.is_contiguous == other.is_contiguous &&
         one.is_parameter == other.is_parameter && (!one.is_parameter || one.shape == other.shape);
}

// Whether two calls are equal except for sizes.
bool is_similar(const TracedCall& one, const TracedCall& other) {
  const auto are_similar = [](const auto& these, const auto& those) {
    return std::equal(these.begin(), these.end(), those.begin(), those.end(),
                      [](const auto& a, const auto& b) { return is_similar(a, b); });
  };
  return one.function == other.function && one.has_gradient == other.has_gradient &&
         one.first_value == other.first_value && one.first_result == other.first_result &&
         one.views == other.views && are_similar(one.arguments, other.arguments) &&
         std::equal(one.keywords.begin(), one.keywords.end(), other.keywords.begin(),
                    other.keywords.end(),
                    [](const py::str& a, const py::str& b) { return a.equal(b); }) &&
         is_similar(one.result, other.result) && are_similar(one.metas, other.metas);
}

bool is_similar(const TraceNode& node, const std::vector<const TracedCall*>& calls) {
  const TraceNode* each = &node;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call, each = each->parent) {
    if (each->parent == nullptr) return false;
    if (&each->call != *call && !is_similar(each->call, **call)) return false;
  }
  return each->parent == nullptr;
}

std::vector<const TracedCall*> pointers(const std::vector<TracedCall>& calls) {
  std::vector<const TracedCall*> found;
  for (const TracedCall& call : calls) found.push_back(&call);
  return found;
}

bool covers(const std::vector<phi::DDim>& dynamic_shapes, const std::vector<phi::DDim>& shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (int axis = 0; axis < shapes[i].size(); ++axis) {
      if (dynamic_shapes[i][axis] >= 0 && dynamic_shapes[i][axis] != shapes[i][axis]) return false;
    }
  }
  return true;
}

void mark_differing_dims_dynamic(const std::vector<phi::DDim>& others,
                                 std::vector<phi::DDim>* shapes) {
  for (size_t i = 0; i < shapes->size(); ++i) {
    for (int axis = 0; axis < others[i].size(); ++axis) {
      if ((*shapes)[i][axis] != others[i][axis]) (*shapes)[i][axis] = -1;
    }
  }
}

}  // namespace

void TraceCache::add_end(const TraceNode& root, TraceNode& node) {
  if (&root == root_.get()) groups_[node.group_hash].ends.push_back(&node);
}

std::shared_ptr<TracePattern> TraceCache::find_or_make_pattern(const TraceNode& node) {
  const auto found = groups_.find(node.group_hash);
  if (found == groups_.end() || found->second.is_specialized) return nullptr;
  const std::vector<const TracedCall*> calls = calls_of(node);
  const auto has_gradient = [](const TracedCall* call) { return call->has_gradient; };
  if (std::any_of(calls.begin(), calls.end(), has_gradient)) return nullptr;
  auto& [ends, patterns, _] = found->second;
  const std::vector<phi::DDim> own = shapes_of(node);
  std::vector<phi::DDim> dynamic_shapes = own;
  bool has_pattern = false;
  for (const auto& pattern : patterns) {
    if (!is_similar(node, pointers(pattern->calls))) continue;
    if (covers(pattern->shapes, own)) return pattern;
    mark_differing_dims_dynamic(pattern->shapes, &dynamic_shapes);
    has_pattern = true;
  }
  size_t similar = 0;
  for (const TraceNode* end : ends) {
    if (!is_similar(*end, calls)) continue;
    mark_differing_dims_dynamic(shapes_of(*end), &dynamic_shapes);
    ++similar;
  }
  if (!has_pattern && similar <= kMaxStaticGraphs) return nullptr;
  auto pattern = std::make_shared<TracePattern>();
  for (const TracedCall* call : calls) pattern->calls.push_back(*call);
  pattern->shapes = std::move(dynamic_shapes);
  return patterns.emplace_back(std::move(pattern));
}

std::vector<std::vector<phi::DDim>> TraceCache::examples_of(const TraceNode& node) const {
  constexpr size_t kMaxExamples = 8;
  const std::vector<const TracedCall*> calls = calls_of(node);
  std::vector<std::vector<phi::DDim>> found{shapes_of(node)};
  const auto group = groups_.find(node.group_hash);
  if (group == groups_.end()) return found;
  for (const TraceNode* end : group->second.ends) {
    if (found.size() == kMaxExamples) break;
    if (end != &node && is_similar(*end, calls)) found.push_back(shapes_of(*end));
  }
  return found;
}

void TraceCache::specialize_group(const TraceNode& node) {
  TraceGroup& group = groups_[node.group_hash];
  group.is_specialized = true;
  const auto freed = std::exchange(group.patterns, {});
}

py::list TraceCache::ends() const {
  py::list found;
  std::vector<std::pair<const TraceNode*, int>> pending{{root_.get(), 0}};
  while (!pending.empty()) {
    const auto [node, length] = pending.back();
    pending.pop_back();
    if (!node->graph_breaks.empty() || !node->graphs.empty()) {
      py::list graphs;
      for (const auto& [outputs, graph] : node->graphs) graphs.append(graph);
      py::list graph_breaks;
      for (const auto& [reason, line] : node->graph_breaks) graph_breaks.append(line);
      found.append(py::make_tuple(length, graph_breaks, graphs));
    }
    for (auto next = node->children.rbegin(); next != node->children.rend(); ++next) {
      pending.emplace_back(next->get(), length + 1);
    }
  }
  return found;
}

// -- threads -------------------------------------------------------------------------------------

NoCapture::NoCapture() : before_(std::exchange(current_capture, nullptr)) {}

NoCapture::~NoCapture() { current_capture = before_; }

void bump_settings_version() { ++current_settings_version; }

uint64_t settings_version() { return current_settings_version; }

void set_saved_tensor_hooks_active(bool on) { saved_tensor_hooks_active = on; }

namespace {

// Calls `find` for the tensors among the arguments; returns its first result that is not null.
template <typename Find>
auto find_any(const Find& find, PyObject* argument, int depth = 0) -> decltype(find(argument)) {
  constexpr int kMaxDepth = 4;
  if (argument == nullptr || depth > kMaxDepth) return nullptr;
  if (PyDict_Check(argument)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(argument, &at, &key, &value) != 0;) {
      if (const auto found = find_any(find, value, depth + 1)) return found;
    }
    return nullptr;
  }
  if (is_sequence(argument)) {
    for (PyObject* member : sequence_items(argument)) {
      if (const auto found = find_any(find, member, depth + 1)) return found;
    }
    return nullptr;
  }
  return find(argument);
}

Capture* capture_of_lazy(PyObject* argument) {
  const auto found = lazy_tensors().find(argument);
  return found == lazy_tensors().end() ? nullptr : found->second;
}

// The first capture whose deferred calls read the memory of a tensor; null if there is none. Looked
// up by memory, so that views of a tensor are found, too.
Capture* reader_of(PyObject* argument) {
  if (readers().empty() || !is_tensor(argument)) return nullptr;
  const phi::DenseTensor* tensor = plain_tensor(argument);
  if (tensor == nullptr) return nullptr;
  const auto found = readers().find(tensor->Holder().get());
  return found == readers().end() ? nullptr : found->second.front();
}

const std::string* error_of(PyObject* argument) {
  const auto found = failed_tensors().find(argument);
  return found == failed_tensors().end() ? nullptr : &found->second;
}

// The capture whose deferred calls must be computed before a call with these arguments; else null.
Capture* owner_of(const std::array<PyObject*, 3>& arguments, bool may_write) {
  for (PyObject* argument : arguments) {
    if (Capture* found = find_any(capture_of_lazy, argument)) return found;
    if (!may_write) continue;
    if (Capture* found = find_any(reader_of, argument)) return found;
  }
  return nullptr;
}

}  // namespace

bool is_any_lazy(PyObject* args, PyObject* kwargs) {
  for (PyObject* argument : {args, kwargs}) {
    if (!failed_tensors().empty() && find_any(error_of, argument) != nullptr) return true;
    if (!lazy_tensors().empty() && find_any(capture_of_lazy, argument) != nullptr) return true;
  }
  return false;
}

bool flush_other_threads(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write) {
  const std::array<PyObject*, 3> arguments{self, args, kwargs};
  if (!failed_tensors().empty()) {
    for (PyObject* argument : arguments) {
      if (const std::string* error = find_any(error_of, argument)) {
        PyErr_SetString(PyExc_RuntimeError,
                        concat("the tensor was not computed: ", *error).c_str());
        return false;
      }
    }
  }
  if (lazy_tensors().empty() && readers().empty()) return true;
  // The capture that defers the arguments is looked up in each iteration: another thread may have
  // computed and ended it meanwhile.
  while (Capture* owner = owner_of(arguments, may_write)) {
    if (!owner->flush_for_other_thread()) return false;
  }
  return true;
}

void reset_captures_after_fork() {
  GcPause::reset_after_fork();
  for (const auto& [tensor, owner] : lazy_tensors()) owner->reset_lost_thread();
}

std::string tensor_versions(const py::list& tensors) {
  std::string versions;
  for (const py::handle& object : tensors) {
    auto& tensor = tensor_of(object.ptr());
    versions += std::to_string(tensor.initialized() ? tensor.current_inplace_version() : -1) + " ";
  }
  return versions;
}

// -- a call of a function ------------------------------------------------------------------------

Capture::Capture(std::shared_ptr<TraceCache> trace_cache, py::object tracer)
    : trace_cache_(std::move(trace_cache)), tracer_(std::move(tracer)) {
  no_amp_ = py::int_(0);
  begin();
  outer_ = std::exchange(current_capture, this);
}

Capture::~Capture() {
  stop_tracking_reads();
  current_capture = outer_;
}

Capture* Capture::current() { return current_capture; }

void Capture::begin() {
  // The old members are exchanged first and destroyed last: their destructors may call Python,
  // which may call this function again.
  const auto root = std::exchange(root_, trace_cache_->root());
  node_ = root_.get();
  is_recording_ = false;
  for (const auto& value : values_) lazy_tensors().erase(value.ptr());
  const auto memory = stop_tracking_reads();
  const auto values = std::exchange(values_, {});
  is_result_.clear();
  released_ranges_.clear();
  value_indices_.clear();
}

// Registers this capture as a reader of the tensor's memory: later writers of the memory have the
// capture flushed first.
void Capture::track_read(PyObject* tensor) {
  const phi::DenseTensor* const dense = plain_tensor(tensor);
  auto& captures = readers()[dense->Holder().get()];
  if (std::find(captures.begin(), captures.end(), this) != captures.end()) return;
  captures.push_back(this);
  read_memory_.push_back(dense->Holder().get());
  memory_pins_.push_back(
      std::make_unique<const MemoryPin>(std::vector<const phi::DenseTensor*>{dense}));
}

std::vector<std::unique_ptr<const MemoryPin>> Capture::stop_tracking_reads() {
  for (const auto* memory : read_memory_) {
    const auto found = readers().find(memory);
    auto& captures = found->second;
    captures.erase(std::find(captures.begin(), captures.end(), this));
    if (captures.empty()) readers().erase(found);
  }
  read_memory_.clear();
  return std::exchange(memory_pins_, {});
}

bool Capture::has_gradient() const { return get_flag(tracer_.ptr(), "_has_grad"); }

bool Capture::may_capture(bool has_gradient) const {
  if (has_gradient && !trace_cache_->trains()) return false;
  if (saved_tensor_hooks_active || !is_dynamic_ || values_.size() > kMaxTraceValues) return false;
  return py::int_(tracer_.attr("_amp_level")).equal(no_amp_);
}

int Capture::value_index(PyObject* tensor) const {
  const auto found = value_indices_.find(tensor);
  if (found != value_indices_.end()) return found->second;
  const auto added = std::find(new_values_.begin(), new_values_.end(), tensor);
  if (added == new_values_.end()) return -1;
  return static_cast<int>(values_.size() + (added - new_values_.begin()));
}

void Capture::add(PyObject* tensor, bool is_result) {
  value_indices_.emplace(tensor, static_cast<int>(values_.size()));
  is_result_.push_back(is_result);
  values_.push_back(py::reinterpret_borrow<py::object>(tensor));
}

// Waits while another thread computes the deferred operators of this capture. Returns false, with
// Python's error, if this thread is the computing one.
bool Capture::wait_for_compute() const {
  while (is_computing_) {
    if (computing_ == std::this_thread::get_id()) {
      PyErr_SetString(PyExc_RuntimeError, "the tensor is being computed by this thread");
      return false;
    }
    const py::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void Capture::reset_lost_thread() {
  if (computing_ != std::this_thread::get_id()) is_computing_ = false;
}

bool Capture::flush_for_other_thread() {
  if (is_computing_) {
    if (computing_ == std::this_thread::get_id()) return wait_for_compute();
    // Without the GIL no member is read any more: another thread may end the capture during the
    // sleep.
    const py::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return true;
  }
  return compute();
}

// The arguments of a call in order, including self of a method.
static std::vector<PyObject*> arguments_of(const InterceptedFunction& function, PyObject* self,
                                           PyObject* args, PyObject* kwargs) {
  std::vector<PyObject*> arguments;
  if (function.is_method) arguments.push_back(self);
  const std::vector<PyObject*> positional = sequence_items(args);
  arguments.insert(arguments.end(), positional.begin(), positional.end());
  if (kwargs == nullptr) return arguments;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) arguments.push_back(value);
  return arguments;
}

// Whether a captured call gets a copy of a tensor argument: other code may write the memory of the
// tensor (has_escaped), such as a batch that DataLoader processes pass in shared memory. Each call
// with the tensor gets another copy. Large tensors, parameters, and tensors that require a gradient
// are not copied.
static bool is_copied_on_capture(PyObject* object) {
  constexpr size_t kMaxCopiedBytes = size_t{64} << 20;
  if (!is_tensor(object) || is_lazy(object)) return false;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || !has_escaped(*tensor)) return false;
  return tensor->meta().is_contiguous() && num_bytes(*tensor) <= kMaxCopiedBytes &&
         Py_TYPE(object)->tp_base == &PyBaseObject_Type && stops_gradient(object);
}

std::vector<PyObject*> Capture::snapshot_arguments(const InterceptedFunction& function,
                                                   const std::vector<PyObject*>& given,
                                                   std::vector<py::object>* copies) const {
  std::vector<PyObject*> arguments;
  for (PyObject* argument : given) {
    if (!is_plain_python(argument)) {
      const bool is_number = is_taken_as_python_number(argument, function, given[0]);
      argument = snapshot_argument(argument, function, is_number, copies);
    }
    const auto& int_list_arguments = function.rule.int_list_arguments;
    if (std::find(int_list_arguments.begin(), int_list_arguments.end(), arguments.size()) !=
        int_list_arguments.end()) {
      if (auto list = known_int_list(argument)) {
        copies->push_back(std::move(*list));
        argument = copies->back().ptr();
      }
    }
    arguments.push_back(argument);
  }
  return arguments;
}

// The elements of an argument that is a list of integers, such as a shape, and is passed as an
// integer tensor or as a list with such tensors. Nothing unless all elements are known.
std::optional<py::list> Capture::known_int_list(PyObject* argument) const {
  py::list numbers;
  if (is_tensor(argument)) {
    if (append_known_integers(argument, &numbers)) return numbers;
    return {};
  }
  if (!PyList_Check(argument) && !PyTuple_Check(argument)) return {};
  const std::vector<PyObject*> given = sequence_items(argument);
  if (std::none_of(given.begin(), given.end(), is_tensor)) return {};
  for (PyObject* member : given) {
    if (!is_tensor(member)) {
      numbers.append(py::handle(member));
    } else if (tensor_of(member).numel() != 1 || !append_known_integers(member, &numbers)) {
      return {};
    }
  }
  return numbers;
}

bool Capture::append_known_integers(PyObject* tensor, py::list* numbers) const {
  constexpr int64_t kMaxKnownListLength = 64;
  const phi::DenseTensor* memory = is_deferred(tensor) ? nullptr : plain_tensor(tensor);
  if (memory == nullptr || memory->dims().size() > 1 || memory->numel() > kMaxKnownListLength)
    return false;
  if (!memory->meta().is_contiguous()) return false;
  for (int64_t i = 0; i < memory->numel(); ++i) {
    if (memory->dtype() == phi::DataType::INT64) {
      numbers->append(memory->data<int64_t>()[i]);
    } else if (memory->dtype() == phi::DataType::INT32) {
      numbers->append(memory->data<int32_t>()[i]);
    } else {
      return false;
    }
  }
  return true;
}

PyObject* Capture::snapshot_argument(PyObject* argument, const InterceptedFunction& function,
                                     bool is_number, std::vector<py::object>* copies,
                                     int depth) const {
  constexpr int kMaxDepth = 4;
  const auto own = [copies](py::object made) {
    copies->push_back(std::move(made));
    return copies->back().ptr();
  };
  if (is_number) return own(to_python_number(argument));
  if (is_tensor(argument)) {
    if (value_indices_.count(argument) > 0 || !is_copied_on_capture(argument)) return argument;
    const auto copy = tensor_of(argument).copy_to(phi::CPUPlace(), true);
    return own(py::reinterpret_steal<py::object>(new_python_tensor(copy)));
  }
  if (is_sequence(argument) && depth <= kMaxDepth) {
    const std::vector<PyObject*> given = sequence_items(argument);
    if (std::all_of(given.begin(), given.end(), is_plain_python)) return argument;
    std::vector<PyObject*> items;
    for (PyObject* member : given) {
      const bool is_item = is_numpy_number(member, true) || is_numpy_number(member, false);
      items.push_back(snapshot_argument(member, function, is_item, copies, depth + 1));
    }
    if (items == given) return argument;
    if (is_slice(argument)) {
      return own(py::reinterpret_steal<py::object>(PySlice_New(items[0], items[1], items[2])));
    }
    py::list made;
    for (PyObject* item : items) made.append(py::handle(item));
    return own(PyTuple_Check(argument) ? py::object(py::tuple(made)) : py::object(made));
  }
  constexpr int kMaxDimensions = 8;
  if (function.rule.value_rule.kind == ValueRule::Kind::kSubscript) {
    if (!is_integer_array(argument, 0, kMaxDimensions)) return argument;
    const NoCapture none;
    return own(import_module("paddle").attr("to_tensor")(py::handle(argument)));
  }
  // Operators other than arithmetic ones get a list in place of a 1-D array, as in Paddle, but no
  // scalar in place of a 0-D array.
  const bool is_list = !function.rule.is_arithmetic && is_integer_array(argument, 1, 1);
  return is_list ? own(py::handle(argument).attr("tolist")()) : argument;
}

bool Capture::is_deferred(PyObject* tensor) const {
  if (is_lazy(tensor)) return true;
  if (!is_recording_) return false;
  const auto found = value_indices_.find(tensor);
  return found != value_indices_.end() && is_result_[found->second];
}

// Whether there are tensors among the arguments, and all are materialized integer tensors. Results
// computed from these (indices, masks, lengths) are computed immediately, because lookups need
// their values.
bool Capture::has_only_known_integers(PyObject* args, PyObject* self) const {
  bool has_tensor = false, has_other = false;
  const auto look = [&](PyObject* object) {
    has_tensor = true;
    const auto& tensor = tensor_of(object);
    has_other =
        has_other || is_deferred(object) || !tensor.defined() || !is_integer_dtype(tensor.dtype());
  };
  const bool is_seen = visit_tensors(args, look) && (self == nullptr || visit_tensors(self, look));
  return is_seen && has_tensor && !has_other;
}

// -- ranges of lazy integers ---------------------------------------------------------------------

bool Capture::satisfies(const ValueRule& rule, const std::vector<PyObject*>& given) const {
  if (rule.kind == ValueRule::Kind::kNone) return true;
  const auto known = [this](PyObject* tensor) {
    return is_deferred(tensor) ? nullptr : plain_tensor(tensor);
  };
  Ranges ranges;
  const auto range = [&](PyObject* tensor, int64_t column,
                         int64_t columns) -> std::optional<IntegerRange> {
    if (!is_deferred(tensor)) return {};
    return range_of_column(value_index(tensor), column, columns, &ranges);
  };
  return paddle_ngraph::satisfies(rule, given, known, range);
}

std::optional<IntegerRange> Capture::range_of(int number, Ranges* known) const {
  // An index outside of values_ is that of a lazy tensor of another thread: its range is unknown.
  if (number < 0 || number >= static_cast<int>(values_.size())) return {};
  const auto found = known->find(number);
  if (found != known->end()) return found->second;
  std::optional<IntegerRange> range;
  if (is_result_[number]) {
    const auto dtype = known_meta(number).dtype;
    if (dtype == phi::DataType::BOOL) {
      range = IntegerRange{0, 1};
    } else if (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32) {
      range = range_of_result(call_of(number), number, known);
    }
    constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
    if (range && (range->upper > kInt32Max || range->lower < -kInt32Max)) range.reset();
  } else if (values_[number]) {
    const phi::DenseTensor* tensor = plain_tensor(values_[number].ptr());
    if (tensor != nullptr) range = range_of_tensor(*tensor);
  } else if (const auto before = released_ranges_.find(number); before != released_ranges_.end()) {
    range = before->second;
  }
  return known->emplace(number, range).first->second;
}

// The argument that a call got at index `at` or by the keyword `name`; null if there is none.
static const Argument* argument_of(const TracedCall& call, size_t at, const char* name) {
  const size_t first_keyword = call.arguments.size() - call.keywords.size();
  if (at < first_keyword) return &call.arguments[at];
  for (size_t i = 0; i < call.keywords.size(); ++i) {
    if (call.keywords[i].equal(py::str(name))) return &call.arguments[first_keyword + i];
  }
  return nullptr;
}

// The integer range of column `column` (of `columns` along the last axis) of an index tensor. If
// the columns were stacked from separate tensors, the range is that of the column's tensor.
std::optional<IntegerRange> Capture::range_of_column(int number, int64_t column, int64_t columns,
                                                     Ranges* known) const {
  if (number >= 0 && number < static_cast<int>(values_.size()) && is_result_[number]) {
    const TracedCall& call = call_of(number);
    const bool is_stacked = call.function->rule.range_rule.kind == RangeRule::Kind::kStacked &&
                            call.arguments[0].kind == Argument::Kind::kSequence &&
                            static_cast<int64_t>(call.arguments[0].items.size()) == columns;
    const Argument* const axis = argument_of(call, 1, "axis");
    if (is_stacked && axis != nullptr && axis->kind == Argument::Kind::kConstant &&
        PyLong_CheckExact(axis->constant.ptr())) {
      const int64_t at = PyLong_AsLongLong(axis->constant.ptr());
      const int last = known_meta(number).shape.size() - 1;
      if (at == -1 || at == last) return range_of(call.arguments[0].items[column], known);
    }
  }
  return range_of(number, known);
}

std::optional<IntegerRange> Capture::range_of(const Argument& argument, Ranges* known) const {
  if (argument.kind == Argument::Kind::kValue) return range_of(argument.value, known);
  if (argument.kind == Argument::Kind::kConstant && PyLong_CheckExact(argument.constant.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(argument.constant.ptr(), &overflow);
    return overflow == 0 ? std::optional(IntegerRange{number, number}) : std::nullopt;
  }
  if (argument.kind != Argument::Kind::kSequence || argument.items.empty()) return {};
  std::optional<IntegerRange> all;
  for (const Argument& item : argument.items) {
    const auto range = range_of(item, known);
    if (!range) return {};
    all = all ? union_of(*all, *range) : *range;
  }
  return all;
}

std::optional<IntegerRange> Capture::range_of_result(const TracedCall& call, int number,
                                                     Ranges* known) const {
  using Kind = RangeRule::Kind;
  const RangeRule& rule = call.function->rule.range_rule;
  const auto of = [&](size_t at) -> std::optional<IntegerRange> {
    if (at >= call.arguments.size() - call.keywords.size()) return {};
    return range_of(call.arguments[at], known);
  };
  const bool is_index =
      rule.kind == Kind::kIndices || (rule.kind == Kind::kSorted && number > call.first_result);
  if (is_index) {
    if (call.arguments.empty() || call.arguments[0].kind != Argument::Kind::kValue) return {};
    const phi::DDim& dims = known_meta(call.arguments[0].value).shape;
    int64_t end = phi::product(dims);
    const Argument* const axis = argument_of(call, rule.axis_argument, "axis");
    const Argument* const flat = argument_of(call, 3, "flatten");
    const bool is_flat =
        rule.kind == Kind::kIndices && flat != nullptr && flat->constant.ptr() == Py_True;
    const bool has_axis = axis != nullptr && axis->kind == Argument::Kind::kConstant &&
                          PyLong_CheckExact(axis->constant.ptr());
    if (has_axis && !is_flat && dims.size() > 0) {
      const int64_t at = PyLong_AsLongLong(axis->constant.ptr()) + dims.size();
      end = dims[static_cast<int>(at % dims.size())];
    }
    return IntegerRange{0, end - 1};
  }
  if (rule.kind == Kind::kSorted || rule.kind == Kind::kStacked) return of(0);
  if (rule.kind == Kind::kPreserved) {
    std::optional<IntegerRange> all;
    for (const size_t at : rule.sources) {
      const auto range = of(at);
      if (!range) return {};
      all = all ? union_of(*all, *range) : *range;
    }
    return all;
  }
  if (rule.kind == Kind::kClipped) {
    const auto lower = of(1), upper = of(2);
    auto range = of(0);
    if (!range) {
      if (!lower || !upper) return {};
      return IntegerRange{lower->lower, std::max(lower->upper, upper->upper)};
    }
    if (lower) range->lower = std::max(range->lower, lower->lower);
    if (lower) range->upper = std::max(range->upper, lower->upper);
    if (upper) range->upper = std::min(range->upper, upper->upper);
    if (upper) range->lower = std::min(range->lower, upper->lower);
    return range;
  }
  const auto one = of(0), other = of(1);
  return one && other ? combine_ranges(rule.kind, *one, *other) : std::nullopt;
}

// -- a call of an operator -----------------------------------------------------------------------

// Whether the results of a call would alias a copy, where the user expects an alias of the copied
// tensor.
bool Capture::aliases_a_copy(const TracedCall& call, const std::vector<py::object>& copies) const {
  return std::any_of(call.views.begin(), call.views.end(), [&](const auto& view) {
    const auto given = static_cast<size_t>(view.second);
    if (given < values_.size()) return false;
    PyObject* tensor = new_values_[given - values_.size()];
    return std::any_of(copies.begin(), copies.end(),
                       [&](const py::object& copy) { return copy.ptr() == tensor; });
  });
}

// Whether the keyword arguments of a call have these names, in this order.
static bool has_keywords(const std::vector<py::str>& keywords, PyObject* kwargs) {
  const size_t number = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
  if (number != keywords.size()) return false;
  if (number == 0) return true;
  PyObject *key, *value;
  size_t next = 0;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
    if (!keywords[next++].equal(py::handle(key))) return false;
  }
  return true;
}

PyObject* Capture::call(const InterceptedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  if (!wait_for_compute()) return nullptr;
  if (function.rule.mutation != Mutation::kNone) {
    return call_mutating(function, self, args, kwargs);
  }
  const bool gradient = has_gradient();
  if (!may_capture(gradient)) return call_with_graph_break(function, self, args, kwargs);
  if (!function.rule.is_stochastic && has_only_shape_tensors({self, args, kwargs})) {
    return call_shape_query(function, self, args, kwargs);
  }
  if (has_only_known_integers(args, function.is_method ? self : nullptr) &&
      !is_any_lazy(nullptr, kwargs)) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  std::vector<py::object> copies;
  const std::vector<PyObject*> given =
      snapshot_arguments(function, arguments_of(function, self, args, kwargs), &copies);
  if (!satisfies(function.rule.value_rule, given)) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  if (TraceNode* next = find_next(function, gradient, given, kwargs)) {
    if (aliases_a_copy(next->call, copies))
      return call_with_graph_break(function, self, args, kwargs);
    for (PyObject* tensor : new_values_) {
      add(tensor, false);
      if (!is_recording_) track_read(tensor);
    }
    node_ = next;
    return is_recording_ ? replay_call(*next, self, args, kwargs) : defer(*next);
  }
  if (!is_recording_) {
    if (!compute()) {
      const py::error_scope saved_error;
      begin();
      return nullptr;
    }
  }
  return record_call(function, gradient, given, self, args, kwargs);
}

PyObject* Capture::call_with_graph_break(const InterceptedFunction& function, PyObject* self,
                                         PyObject* args, PyObject* kwargs) {
  const bool may_write = function.rule.mutation != Mutation::kNone;
  if (!flush(function.name) || !flush_other_threads(self, args, kwargs, may_write)) return nullptr;
  const NoCapture none;
  return call_now(function, self, args, kwargs);
}

bool Capture::has_only_shape_tensors(const std::array<PyObject*, 3>& arguments) const {
  bool has_sizes = false;
  const auto find_other = [&](PyObject* argument) -> PyObject* {
    if (!is_tensor(argument)) return nullptr;
    if (shape_tensors_.count(argument) == 0) return argument;
    has_sizes = true;
    return nullptr;
  };
  for (PyObject* argument : arguments) {
    if (find_any(find_other, argument) != nullptr) return false;
  }
  return has_sizes;
}

bool Capture::has_only_materialized_tensors(const std::array<PyObject*, 3>& arguments,
                                            bool exposes_memory) const {
  const auto find_other = [&](PyObject* argument) -> PyObject* {
    if (!is_tensor(argument)) return nullptr;
    return is_deferred(argument) || error_of(argument) != nullptr ? argument : nullptr;
  };
  for (PyObject* argument : arguments) {
    if (find_any(find_other, argument) != nullptr) return false;
  }
  return !exposes_memory || owner_of(arguments, true) == nullptr;
}

// Asks owner_of() as for a write, since the result of the call may give write access to the memory.
bool Capture::may_expose_data(const std::array<PyObject*, 3>& arguments) const {
  return has_only_shape_tensors(arguments) && owner_of(arguments, true) == nullptr;
}

// A lazy tensor is replaced by a placeholder with its metadata: another thread may materialize it
// concurrently.
static py::object placeholder_of(PyObject* argument) {
  if (!is_tensor(argument) || !is_lazy(argument)) {
    return py::reinterpret_borrow<py::object>(argument);
  }
  const auto& tensor = tensor_of(argument);
  return make_tensor({tensor.dtype(), tensor.dims()}, true);
}

PyObject* Capture::call_shape_query(const InterceptedFunction& function, PyObject* self,
                                    PyObject* args, PyObject* kwargs) {
  constexpr size_t kMaxShapeTensors = 4096;
  py::list given;
  for (PyObject* argument : sequence_items(args)) given.append(placeholder_of(argument));
  const py::tuple shapes(given);
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, shapes.ptr(), kwargs));
  if (!result) return nullptr;
  const auto freed = shape_tensors_.size() < kMaxShapeTensors ? decltype(shape_tensors_)()
                                                              : std::exchange(shape_tensors_, {});
  const auto remember = [this](PyObject* object) -> PyObject* {
    if (is_tensor(object)) {
      shape_tensors_.emplace(object, py::reinterpret_borrow<py::object>(object));
    }
    return nullptr;
  };
  find_any(remember, result.ptr());
  return result.release().ptr();
}

TraceNode* Capture::find_next(const InterceptedFunction& function, bool has_gradient,
                              const std::vector<PyObject*>& given, PyObject* kwargs) {
  for (const auto& next : node_->children) {
    const TracedCall& call = next->call;
    if (call.function != &function || call.has_gradient != has_gradient ||
        call.arguments.size() != given.size() || !has_keywords(call.keywords, kwargs)) {
      continue;
    }
    new_values_.clear();
    bool is_same = true;
    for (size_t i = 0; is_same && i < given.size(); ++i) {
      is_same = matches(call.arguments[i], given[i], call);
    }
    if (is_same) return next.get();
  }
  new_values_.clear();
  return nullptr;
}

bool Capture::matches(const Argument& expected, PyObject* given, const TracedCall& call) {
  switch (expected.kind) {
    case Argument::Kind::kValue:
      return is_tensor(given) && matches_value(expected, given, call);
    case Argument::Kind::kConstant:
      return equals_constant(expected, given);
    case Argument::Kind::kUninitialized:
      return is_uninitialized(given);
    case Argument::Kind::kSequence:
      break;
  }
  if (!is_sequence(given) || sequence_type(given) != expected.type) return false;
  const std::vector<PyObject*> items = sequence_items(given);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!matches(expected.items[i], items[i], call)) return false;
  }
  return true;
}

bool Capture::matches_value(const Argument& expected, PyObject* given, const TracedCall& call) {
  const int number = value_index(given);
  if (number >= 0) return number == expected.value;
  const int next = static_cast<int>(values_.size() + new_values_.size());
  if (expected.value != next || next >= call.first_result) return false;
  const TracedTensorMeta& known = call.metas[next - call.first_value];
  if (tensor_of(given).dims() != known.shape)
    return false;  // shapes are compared first, since there may be recorded calls of many sizes
  const auto kind = traced_meta(given);
  if (!kind || !(*kind == known)) return false;
  new_values_.push_back(given);
  return true;
}

// -- deferred calls ------------------------------------------------------------------------------

PyObject* Capture::defer(TraceNode& node) {
  return make_lazy_result(node.call.result, node.call).release().ptr();
}

py::object Capture::make_lazy_result(const Argument& result, const TracedCall& call) {
  if (result.kind == Argument::Kind::kConstant) return result.constant;
  if (result.kind == Argument::Kind::kUninitialized) {
    if (result.empty) return make_tensor(*result.empty, result.stop_gradient);
    return py::reinterpret_steal<py::object>(new_python_tensor(paddle::Tensor()));
  }
  if (result.kind == Argument::Kind::kSequence) {
    py::list items;
    for (const Argument& item : result.items) items.append(make_lazy_result(item, call));
    return result.type == &PyTuple_Type ? py::object(py::tuple(items)) : py::object(items);
  }
  const TracedTensorMeta& kind = call.metas[result.value - call.first_value];
  auto lazy = make_tensor({kind.dtype, kind.shape}, kind.stop_gradient);
  add(lazy.ptr(), true);
  lazy_tensors().emplace(lazy.ptr(), this);
  return lazy;
}

bool Capture::flush(const std::string& reason) {
  if (!wait_for_compute()) return false;
  if (node_ == root_.get()) {
    if (is_recording_) begin();
    return true;
  }
  if (node_->graph_breaks.empty()) trace_cache_->add_end(*root_, *node_);
  if (node_->graph_breaks.count(reason) == 0)
    node_->graph_breaks.emplace(reason, with_user_line(reason));
  if (is_recording_) record(Reason::kGuard, recording_since_);
  const bool is_done = is_recording_ || compute(/*is_end=*/true);
  const py::error_scope saved_error;
  begin();
  return is_done;
}

std::vector<TraceNode*> Capture::trace() const { return nodes_to(node_); }

// Indices of the lazy values to which something else than this capture refers: they have to be
// computed.
std::vector<int> Capture::outputs() const {
  std::vector<int> numbers;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (Py_REFCNT(values_[i].ptr()) > 1 && is_lazy(values_[i].ptr())) {
      numbers.push_back(static_cast<int>(i));
    }
  }
  return numbers;
}

void Capture::record(Reason reason, int64_t start) {
  has_run_ = true;
  record_event(reason, trace_cache_->id(), start);
}

void Capture::end() {
  if (!has_run_) record(Reason::kNotCaptured, begun_at_);
}

bool Capture::compute(bool is_end) {
  const int64_t start = ticks();
  if (node_ == root_.get()) is_recording_ = true;
  recording_since_ = start;
  if (is_recording_) return true;
  // Begun first, so that it ends when this object is consistent. An exception in compute_outputs()
  // is thus one of the graph or of an operator, except a Ctrl-C.
  const DeferredSignals deferral(DeferredSignals::Mode::kCtrlCRaises);
  const NoCapture none;
  const GcPause gc_pause;
  is_computing_ = true;
  computing_ = std::this_thread::get_id();
  std::string error;
  py::object type, value, trace;
  try {
    const auto reason = compute_outputs();
    has_run_ = true;
    if (reason && (is_end || reason != Reason::kGuard)) record(*reason, start);
  } catch (py::error_already_set& raised) {
    record(Reason::kNoGraph, start);
    error = raised.what();
    type = raised.type(), value = raised.value(), trace = raised.trace();
  } catch (const std::exception& raised) {
    error = raised.what();
    type = py::reinterpret_borrow<py::object>(PyExc_RuntimeError), value = py::str(error);
  }
  for (const auto& tensor : values_) {
    if (!error.empty() && is_lazy(tensor.ptr()) && is_uninitialized(tensor.ptr(), true)) {
      failed_tensors().emplace(tensor.ptr(), error);
      tensor.inc_ref();
    }
    lazy_tensors().erase(tensor.ptr());
  }
  const auto memory = stop_tracking_reads();
  is_recording_ = true;
  // Set last: another thread may end the capture as soon as this thread releases the GIL.
  is_computing_ = false;
  if (error.empty()) return true;
  PyErr_Restore(type.release().ptr(), value.release().ptr(), trace.release().ptr());
  return false;
}

// Whether a graph for these requested values is created immediately: the first graph of a trace, or
// values that were requested before. Requested values may differ from call to call, so a graph for
// other values might never be used again.
bool Capture::has_recurred(const std::vector<int>& outputs) {
  constexpr size_t kMaxOutputSets = 256;
  if (node_->graphs.empty() || node_->outputs.erase(outputs) > 0) return true;
  if (node_->outputs.size() == kMaxOutputSets) node_->outputs.clear();
  node_->outputs.insert(outputs);
  return false;
}

// Computes the requested lazy tensors, by a graph if there is one, else by the operators. If the
// graph raises, it has had no effects, and the operators are called instead. Throws Python's
// exceptions.
std::optional<Reason> Capture::compute_outputs() {
  const std::vector<int> numbers = outputs();
  std::optional<Reason> reason = numbers.empty() ? Reason::kNewResults : Reason::kGuard;
  std::unique_ptr<py::error_already_set> raised;
  py::object graph;  // a strong reference, since another thread may drop the graph while it runs
  try {
    const auto found = node_->graphs.find(numbers);
    if (found != node_->graphs.end()) {
      graph = found->second;
    } else if (!node_->graph_breaks.empty() && !numbers.empty()) {
      graph = find_or_make_graph(numbers);
      if (graph) node_->graphs.emplace(numbers, graph);
      if (!graph) reason = Reason::kNewResults;
    }
    if (graph) reason = compute_graph(graph, numbers);
    if (!reason) return reason;
  } catch (py::error_already_set& error) {
    reason = Reason::kNoGraph;
    const bool is_dynamic = graph && graph.attr("is_open").cast<bool>();
    if (is_dynamic && error.matches(PyExc_Exception)) {
      specialize_group(numbers);
    } else {
      raised = std::make_unique<py::error_already_set>(error);
    }
  }
  if (!compute_eagerly()) throw py::error_already_set();
  if (raised != nullptr) throw py::error_already_set(*raised);
  return reason;
}

namespace {

// Sets a lazy tensor to its computed result. The tensor keeps its name, if the name was requested;
// else it gets `name`, not the name of a program's output, which each call would give to another
// tensor.
void materialize(paddle::Tensor* lazy, const paddle::Tensor& result, const std::string& name) {
  const std::string known = lazy->name();
  *lazy = result;
  lazy->set_name(known.empty() ? name : known);
}

}  // namespace

// Finds or creates the graph for these requested values: that of the pattern of the trace, or one
// for this trace alone. Null if no graph is worth creating yet.
py::object Capture::find_or_make_graph(const std::vector<int>& outputs) {
  // A strong reference to the pattern, since another thread may drop it.
  const auto pattern = trace_cache_->find_or_make_pattern(*node_);
  if (pattern != nullptr) {
    const auto found = pattern->graphs.find(outputs);
    if (found != pattern->graphs.end()) return found->second;
  }
  if (!has_recurred(outputs)) return {};
  const DeferredSignals deferral(DeferredSignals::Mode::kDeferred);
  py::object graph = make_graph(outputs, pattern == nullptr ? nullptr : &pattern->shapes);
  if (pattern != nullptr) pattern->graphs.emplace(outputs, graph);
  trace_cache_->count_graph();
  return graph;
}

// Whether the computed results have the shapes that the lazy tensors were given.
bool Capture::have_shapes(const py::list& results, const std::vector<int>& outputs) const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const py::object result = results[i];
    if (tensor_of(result.ptr()).dims() != tensor_of(values_[outputs[i]].ptr()).dims()) return false;
  }
  return true;
}

// Computes the requested lazy tensors by a graph. Returns the reason if the graph has not computed
// them.
std::optional<Reason> Capture::compute_graph(const py::object& graph,
                                             const std::vector<int>& outputs) {
  py::list given;
  for (const auto& value : values_) given.append(is_lazy(value.ptr()) ? py::none() : value);
  const py::object computed = graph(given);
  const bool is_dynamic = graph.attr("is_open").cast<bool>();
  const bool is_computed = !py::isinstance<py::int_>(computed);
  if (is_dynamic && !(is_computed ? have_shapes(py::list(computed), outputs)
                                  : graph.attr("why_native").is_none())) {
    specialize_group(outputs);
    return is_computed ? Reason::kGuard : static_cast<Reason>(computed.cast<int>());
  }
  if (!is_computed) return static_cast<Reason>(computed.cast<int>());
  const py::list results(computed);
  for (size_t i = 0; i < outputs.size(); ++i) {
    materialize(&tensor_of(values_[outputs[i]].ptr()), tensor_of(results[i].ptr()), "");
  }
  return std::nullopt;
}

// Has traces of this group get graphs of their own, since a graph with static shapes may succeed
// where one with dynamic shapes failed.
void Capture::specialize_group(const std::vector<int>& outputs) {
  trace_cache_->specialize_group(*node_);
  node_->graphs.erase(outputs);
}

bool Capture::compute_eagerly() {
  const bool before = has_gradient();
  bool is_done = true;
  for (const TraceNode* each : trace()) {
    const TracedCall& call = each->call;
    tracer_.attr("_has_grad") = call.has_gradient;
    py::list arguments;
    for (const Argument& of : call.arguments) arguments.append(argument(of));
    py::object self;
    py::list positional;
    py::dict kwargs;
    const size_t first_keyword = arguments.size() - call.keywords.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i == 0 && call.function->is_method) {
        self = arguments[i];
      } else if (i < first_keyword) {
        positional.append(arguments[i]);
      } else {
        kwargs[call.keywords[i - first_keyword]] = arguments[i];
      }
    }
    const py::tuple args(positional);
    const auto computed = py::reinterpret_steal<py::object>(
        call_now(*call.function, self.ptr(), args.ptr(), kwargs.empty() ? nullptr : kwargs.ptr()));
    is_done = static_cast<bool>(computed);
    if (!is_done) break;
    const bool is_changed = call.function->rule.mutation != Mutation::kNone;
    materialize_results(call.result, is_changed ? self.ptr() : computed.ptr());
  }
  const py::error_scope saved_error;
  tracer_.attr("_has_grad") = before;
  return is_done;
}

// Gives the lazy tensors of a call their computed results.
void Capture::materialize_results(const Argument& expected, PyObject* computed) {
  if (expected.kind == Argument::Kind::kConstant ||
      expected.kind == Argument::Kind::kUninitialized) {
    return;
  }
  if (expected.kind == Argument::Kind::kValue) {
    const paddle::Tensor& result = tensor_of(computed);
    materialize(&tensor_of(values_[expected.value].ptr()), result, result.name());
    return;
  }
  const std::vector<PyObject*> items = sequence_items(computed);
  for (size_t i = 0; i < expected.items.size(); ++i)
    materialize_results(expected.items[i], items[i]);
}

namespace {

// Converts an argument or result to Python. The functions supply its tensors and uninitialized
// tensors.
template <typename GetValue, typename GetUninitialized>
py::object to_python(const Argument& argument, const GetValue& get_value,
                     const GetUninitialized& get_uninitialized) {
  if (argument.kind == Argument::Kind::kValue) return get_value(argument.value);
  if (argument.kind == Argument::Kind::kConstant) return argument.constant;
  if (argument.kind == Argument::Kind::kUninitialized) return get_uninitialized();
  py::list items;
  for (const Argument& item : argument.items) {
    items.append(to_python(item, get_value, get_uninitialized));
  }
  if (argument.type == &PyList_Type) return items;
  if (argument.type == &PySlice_Type) {
    return py::reinterpret_steal<py::object>(PySlice_New(
        py::object(items[0]).ptr(), py::object(items[1]).ptr(), py::object(items[2]).ptr()));
  }
  return py::tuple(items);
}

py::object described(const Argument& argument) {
  return to_python(
      argument, [](int value) { return py::cast(TracedValue{value}); }, [] { return py::none(); });
}

py::object uninitialized_tensor() {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>());
  return py::reinterpret_steal<py::object>(new_python_tensor(made));
}

}  // namespace

py::object Capture::argument(const Argument& of) const {
  return to_python(of, [this](int value) { return values_[value]; }, uninitialized_tensor);
}

// -- recording -----------------------------------------------------------------------------------

// A hash of the functions of all calls up to `node`, not of their arguments.
static size_t trace_group_hash(const TraceNode& node) {
  const size_t number = std::hash<const void*>()(node.call.function) + node.call.metas.size();
  const size_t before = node.parent->group_hash;
  return before ^ (number + 0x9e3779b97f4a7c15 + (before << 6) + (before >> 2));
}

// Computes a call that has a recorded node immediately, as an unknown call before it was, and
// checks the result.
PyObject* Capture::replay_call(TraceNode& node, PyObject* self, PyObject* args, PyObject* kwargs) {
  release_unused();
  const NoCapture none;
  auto result =
      py::reinterpret_steal<py::object>(call_now(*node.call.function, self, args, kwargs));
  const bool is_same = result && match_result(node.call.result, result.ptr(), node.call);
  if (is_same) return result.release().ptr();
  const py::error_scope saved_error;
  begin();
  return result.release().ptr();
}

// Releases computed values to which only this capture refers, as plain Paddle would have freed
// them.
void Capture::release_unused() {
  // Destroyed at the end of the scope: a destructor may call Python, which may call this function
  // again.
  std::vector<py::object> unused;
  for (auto& value : values_) {
    if (!value || Py_REFCNT(value.ptr()) > 1) continue;
    value_indices_.erase(value.ptr());
    const auto number = static_cast<int>(&value - values_.data());
    const phi::DenseTensor* tensor = is_result_[number] ? nullptr : plain_tensor(value.ptr());
    if (tensor != nullptr) released_ranges_.emplace(number, range_of_tensor(*tensor));
    unused.push_back(std::move(value));
  }
}

// Compares the result of a call with the recorded one, and adds its tensors to the values of the
// trace. Returns false if kind or metadata differ.
bool Capture::match_result(const Argument& expected, PyObject* result, const TracedCall& call) {
  if (expected.kind == Argument::Kind::kConstant) return expected.constant.ptr() == result;
  if (expected.kind == Argument::Kind::kUninitialized) return is_uninitialized(result);
  if (expected.kind == Argument::Kind::kValue) {
    if (!is_tensor(result) || value_index(result) >= 0) return false;
    const auto kind = traced_meta(result);
    if (!kind || !(*kind == call.metas[expected.value - call.first_value])) return false;
    add(result, true);
    return true;
  }
  if (Py_TYPE(result) != expected.type) return false;
  const std::vector<PyObject*> items = sequence_items(result);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!match_result(expected.items[i], items[i], call)) return false;
  }
  return true;
}

PyObject* Capture::record_call(const InterceptedFunction& function, bool has_gradient,
                               const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                               PyObject* kwargs) {
  release_unused();
  auto call = describe_call(function, given, kwargs);
  if (!call && !(flush(function.name) && flush_other_threads(self, args, kwargs, false)))
    return nullptr;
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  if (!result) {
    const py::error_scope saved_error;
    flush(function.name);
    return nullptr;
  }
  if (!call) return result.release().ptr();
  for (PyObject* tensor : new_values_) add(tensor, false);
  call->has_gradient = has_gradient;
  call->first_result = static_cast<int>(values_.size());
  new_values_.clear();
  if (!describe_result(result.ptr(), *call, call->result)) {
    flush(function.name);
    return result.release().ptr();
  }
  for (PyObject* tensor : new_values_) add(tensor, true);
  node_->children.push_back(std::make_unique<TraceNode>(node_));
  node_ = node_->children.back().get();
  node_->call = std::move(*call);
  node_->group_hash = trace_group_hash(*node_);
  trace_cache_->count_trace();
  return result.release().ptr();
}

// Describes a call without its results, so that it can be deferred when it recurs; nothing if it
// cannot.
std::optional<TracedCall> Capture::describe_call(const InterceptedFunction& function,
                                                 const std::vector<PyObject*>& given,
                                                 PyObject* kwargs) {
  TracedCall call;
  call.function = &function;
  call.first_value = static_cast<int>(values_.size());
  new_values_.clear();
  for (PyObject* each : given) {
    const bool may_be_tensor = call.arguments.size() < function.rule.max_tensor_arguments;
    const bool is_unread = static_cast<int>(call.arguments.size()) == function.rule.unread_argument;
    Argument found;
    if (is_unread && is_uninitialized(each)) {
      found.kind = Argument::Kind::kUninitialized;
    } else if (!describe(each, may_be_tensor, call, found)) {
      return std::nullopt;
    }
    call.arguments.push_back(std::move(found));
  }
  if (kwargs != nullptr) {
    const bool needs_some =
        !function.rule.required_arguments.empty() || !function.rule.required_with_gradient.empty();
    if (PyDict_GET_SIZE(kwargs) > 0 && needs_some) return std::nullopt;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
      call.keywords.push_back(py::reinterpret_borrow<py::str>(key));
    }
  }
  if (!may_defer(call)) return std::nullopt;
  return call;
}

// Describes an argument of a call. Returns false if a call with this argument cannot be deferred.
bool Capture::describe(PyObject* given, bool may_be_tensor, TracedCall& call, Argument& found,
                       int depth) {
  constexpr int kMaxDepth = 4;
  if (depth > kMaxDepth) return false;
  if (is_tensor(given)) {
    if (!may_be_tensor) return false;
    found.kind = Argument::Kind::kValue;
    found.value = value_index(given);
    if (found.value >= 0) return true;
    const auto kind = traced_meta(given);
    if (!kind) return false;
    found.value = static_cast<int>(values_.size() + new_values_.size());
    call.metas.push_back(*kind);
    new_values_.push_back(given);
    return true;
  }
  if (is_sequence(given)) {
    found.kind = Argument::Kind::kSequence;
    found.type = sequence_type(given);
    if (found.type != &PyList_Type && found.type != &PyTuple_Type && found.type != &PySlice_Type) {
      return false;
    }
    for (PyObject* member : sequence_items(given)) {
      found.items.emplace_back();
      if (!describe(member, may_be_tensor, call, found.items.back(), depth + 1)) return false;
    }
    return true;
  }
  found.constant = is_foreign_number(given) ? to_python_number(given)
                                            : py::reinterpret_borrow<py::object>(given);
  found.is_any_of_type = is_cpu_place(given);
  return is_constant(found.constant.ptr());
}

// Whether a call satisfies the DeferralRule of its function.
bool Capture::may_defer(const TracedCall& call) const {
  bool has_doubles = false, has_double_constants = false;
  for (const Argument& argument : call.arguments) {
    if (argument.kind == Argument::Kind::kValue) {
      const size_t number = argument.value;
      PyObject* tensor =
          number < values_.size() ? values_[number].ptr() : new_values_[number - values_.size()];
      has_doubles = has_doubles || tensor_of(tensor).dtype() == phi::DataType::FLOAT64;
    } else if (argument.kind == Argument::Kind::kConstant &&
               PyFloat_CheckExact(argument.constant.ptr())) {
      const double number = PyFloat_AS_DOUBLE(argument.constant.ptr());
      has_double_constants =
          has_double_constants || static_cast<double>(static_cast<float>(number)) != number;
    }
  }
  // A program would store the constant with 32 bits, and a double loses digits: such a call is not
  // deferred.
  if (has_doubles && has_double_constants) return false;
  const auto has = [&](const auto& needed) {
    return call.arguments.size() > needed.first &&
           call.arguments[needed.first].kind == Argument::Kind::kConstant &&
           call.arguments[needed.first].constant.equal(needed.second);
  };
  const DeferralRule& rule = call.function->rule;
  if (!std::all_of(rule.required_arguments.begin(), rule.required_arguments.end(), has))
    return false;
  if (has_gradient() &&
      !std::all_of(rule.required_with_gradient.begin(), rule.required_with_gradient.end(), has)) {
    return false;
  }
  if (!rule.requires_floats) return true;
  for (const Argument& argument : call.arguments) {
    if (argument.kind != Argument::Kind::kValue) continue;
    const PyObject* tensor = argument.value < static_cast<int>(values_.size())
                                 ? values_[argument.value].ptr()
                                 : new_values_[argument.value - values_.size()];
    const auto dtype = tensor_of(const_cast<PyObject*>(tensor)).dtype();
    if (dtype != phi::DataType::FLOAT32 && dtype != phi::DataType::FLOAT64) return false;
  }
  return true;
}

// Describes the result of a call for the trace. Returns false if the call cannot be deferred next
// time, because its results are not new tensors.
bool Capture::describe_result(PyObject* result, TracedCall& call, Argument& found) {
  if (!is_tensor(result)) {
    if (result == Py_None) {
      found.constant = py::none();
      return true;
    }
    if (!PyList_CheckExact(result) && !PyTuple_CheckExact(result)) return false;
    found.kind = Argument::Kind::kSequence;
    found.type = Py_TYPE(result);
    for (PyObject* member : sequence_items(result)) {
      found.items.emplace_back();
      if (!describe_result(member, call, found.items.back())) return false;
    }
    return true;
  }
  if (value_index(result) >= 0) return false;
  if (is_uninitialized(result)) {
    found.kind = Argument::Kind::kUninitialized;
    found.empty = empty_meta(result);
    found.stop_gradient = stops_gradient(result);
    // An empty result may be deferred only if no gradient, not even of zeros, would pass through
    // it, or if it is a reserve space.
    return !found.empty || found.stop_gradient || call.function->rule.has_reserve_space;
  }
  const auto kind = traced_meta(result);
  // A persistable result is a copy of a parameter, so its call is not deferred.
  if (!kind || get_flag(result, "persistable")) return false;
  found.kind = Argument::Kind::kValue;
  found.value = static_cast<int>(values_.size() + new_values_.size());
  const auto& memory = plain_tensor(result)->Holder();
  for (int i = 0; i < call.first_result; ++i) {
    const phi::DenseTensor* other = values_[i] ? plain_tensor(values_[i].ptr()) : nullptr;
    if (other != nullptr && other->Holder() == memory) call.views[found.value] = i;
  }
  call.metas.push_back(*kind);
  new_values_.push_back(result);
  return true;
}

// -- mutating calls ------------------------------------------------------------------------------
//
// The tensor is another value from then on. Earlier calls have read the former value, to which the
// user has no reference any more.

PyObject* Capture::call_mutating(const InterceptedFunction& function, PyObject* self,
                                 PyObject* args, PyObject* kwargs) {
  const bool gradient = has_gradient();
  if (value_index(self) < 0 && may_mutate_eagerly(function, self, args, kwargs)) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  if (!may_capture(gradient) || !may_mutate(function, self)) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  std::vector<py::object> copies;
  const std::vector<PyObject*> given =
      snapshot_arguments(function, arguments_of(function, self, args, kwargs), &copies);
  if (!satisfies(function.rule.value_rule, given)) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  if (is_recording_) release_unused();
  TraceNode* const next = find_next(function, gradient, given, kwargs);
  if (next == nullptr && !is_recording_ && !compute()) {
    const py::error_scope saved_error;
    begin();
    return nullptr;
  }
  if (is_recording_) return record_mutation(function, next, given, self, args, kwargs);
  for (PyObject* tensor : new_values_) {
    add(tensor, false);
    track_read(tensor);
  }
  node_ = next;
  defer_mutation(*next, self);
  Py_RETURN_NONE;
}

// Whether a writing call is independent of deferred operators: its arguments are materialized, and
// no deferred operator reads the written memory.
bool Capture::may_mutate_eagerly(const InterceptedFunction& function, PyObject* self,
                                 PyObject* args, PyObject* kwargs) const {
  return function.rule.mutation == Mutation::kValues && shape_tensors_.count(self) == 0 &&
         has_only_materialized_tensors({self, args, kwargs}, false) &&
         owner_of({self, nullptr, nullptr}, true) == nullptr;
}

// Whether a write to a tensor may be deferred as a call of the trace. Not if the tensor has
// aliases, which would observe the write.
bool Capture::may_mutate(const InterceptedFunction& function, PyObject* tensor) const {
  const int number = value_index(tensor);
  if (number < 0) return function.rule.mutation == Mutation::kValues && owns_memory(tensor);
  if (!is_result_[number]) return false;
  if (function.rule.mutation == Mutation::kStopGradient) return true;
  // A write is not deferred if stop_gradient of the tensor was set: a written value that has a
  // gradient would let the gradient pass again.
  if (call_of(number).function->rule.mutation == Mutation::kStopGradient) return false;
  const TracedTensorMeta& kind = known_meta(number);
  // If gradients are off, autograd treats the tensor as its former value even after the write: the
  // mutation must not be deferred where the tensor has a gradient.
  return kind.is_contiguous && (kind.stop_gradient || has_gradient()) && !is_aliased(number);
}

void Capture::note_eager_result(PyObject* result) {
  constexpr size_t kMaxEagerResults = 4096;
  if (result == nullptr || !is_tensor(result)) return;
  if (eager_results_.size() == kMaxEagerResults) eager_results_.clear();
  eager_results_.insert_or_assign(result, tensor_of(result).impl());
}

// Whether a materialized tensor was created in this call of the captured function, such as zeros to
// be filled, and is the only one with its memory: writes to it may be deferred. A tensor retained
// from call to call (a cache) may be written at another index each time, which would be another
// trace, and may be large.
bool Capture::owns_memory(PyObject* tensor) const {
  const auto found = eager_results_.find(tensor);
  if (found == eager_results_.end() || found->second.lock() != tensor_of(tensor).impl())
    return false;
  const auto kind = traced_meta(tensor);
  if (!kind || !kind->stop_gradient || !kind->is_contiguous || kind->is_parameter) return false;
  const bool is_unshared =
      tensor_of(tensor).impl().use_count() == 1 && plain_tensor(tensor)->Holder().use_count() == 1;
  return is_unshared && shape_tensors_.count(tensor) == 0 && !get_flag(tensor, "persistable");
}

// Whether there may be another tensor outside of the trace that shares memory with a value.
bool Capture::is_aliased(int number) const {
  std::set<int> same{number};
  const std::vector<TraceNode*> calls = trace();
  for (size_t before = 0; before != same.size();) {
    before = same.size();
    for (const TraceNode* each : calls) {
      for (const auto& [view, other] : each->call.views) {
        if (same.count(view) > 0 || same.count(other) > 0) same.insert({view, other});
      }
    }
  }
  return std::any_of(same.begin(), same.end(), [&](int each) {
    if (!is_result_[each]) return true;
    return each != number && values_[each] && Py_REFCNT(values_[each].ptr()) > 1;
  });
}

// Whether a tensor shares its autograd metadata with another value, as Paddle does for x and x[:].
bool Capture::shares_autograd_meta(PyObject* tensor) const {
  const auto* const own = tensor_of(tensor).get_autograd_meta();
  return own != nullptr && std::any_of(values_.begin(), values_.end(), [&](const py::object& each) {
           return each && each.ptr() != tensor && tensor_of(each.ptr()).get_autograd_meta() == own;
         });
}

// The call that computed a value, or was the first to read it.
const TracedCall& Capture::call_of(int number) const {
  const TraceNode* node = node_;
  while (node->call.first_value > number) node = node->parent;
  return node->call;
}

const TracedTensorMeta& Capture::known_meta(int number) const {
  const TracedCall& call = call_of(number);
  return call.metas[number - call.first_value];
}

void Capture::defer_mutation(const TraceNode& node, PyObject* tensor) {
  paddle::Tensor& changed = tensor_of(tensor);
  auto other = make_tensor({changed.dtype(), changed.dims()}, stops_gradient(tensor));
  if (is_lazy(tensor)) {
    lazy_tensors().emplace(other.ptr(), this);
    // The tensor's memory contains its former value: `other` gets the memory, and the tensor
    // becomes lazy.
  } else {
    std::swap(changed, tensor_of(other.ptr()));
    changed.set_name(tensor_of(other.ptr()).name());
    lazy_tensors().emplace(tensor, this);
  }
  rebind_to_next_value(tensor, std::move(other));
  const bool stops = node.call.metas.back().stop_gradient;
  if (stops != stops_gradient(tensor)) set_stop_gradient(tensor, stops);
}

// Makes a Python tensor denote the next value of the trace. `former`: the tensor that denotes its
// former value from now on; null if none has to.
void Capture::rebind_to_next_value(PyObject* tensor, py::object former) {
  const int before = value_indices_.at(tensor);
  value_indices_.erase(tensor);
  if (former) value_indices_.emplace(former.ptr(), before);
  const auto former_value = std::exchange(values_[before], std::move(former));
  add(tensor, true);
}

// Calls a mutating function, and extends the trace; `known`: the recorded node, if there is one.
PyObject* Capture::record_mutation(const InterceptedFunction& function, TraceNode* known,
                                   const std::vector<PyObject*>& given, PyObject* self,
                                   PyObject* args, PyObject* kwargs) {
  std::optional<TracedCall> call;
  if (known == nullptr) {
    const bool is_own = function.rule.mutation == Mutation::kValues || !shares_autograd_meta(self);
    if (is_own) call = describe_call(function, given, kwargs);
    if (!call && !(flush(function.name) && flush_other_threads(self, args, kwargs, true))) {
      return nullptr;
    }
  }
  const std::vector<PyObject*> others = std::exchange(new_values_, {});
  const bool gradient = has_gradient();
  const int number = value_index(self);
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  if (known == nullptr && !call) return result.release().ptr();
  const auto kind = result ? traced_meta(self) : std::nullopt;
  const bool is_known = known != nullptr && kind && *kind == known->call.metas.back();
  // Whether the tensor requires a gradient although gradients are off: autograd does not see the
  // mutation, see may_mutate().
  const bool is_unseen = kind && !gradient && !kind->stop_gradient;
  if (!kind || is_unseen || (known != nullptr && !is_known)) {
    const py::error_scope saved_error;
    flush(function.name);
    return result.release().ptr();
  }
  for (PyObject* tensor : others) add(tensor, false);
  if (known == nullptr) {
    call->has_gradient = gradient;
    call->first_result = static_cast<int>(values_.size());
    call->result.kind = Argument::Kind::kValue;
    call->result.value = call->first_result;
    call->metas.push_back(*kind);
    // The new value is recorded as a view of the former one: setting stop_gradient keeps the memory
    // and the grad node, which counts if stop_gradient is reset.
    if (function.rule.mutation == Mutation::kStopGradient) call->views[call->first_result] = number;
    node_->children.push_back(std::make_unique<TraceNode>(node_));
    known = node_->children.back().get();
    known->call = std::move(*call);
    node_ = known;
    node_->group_hash = trace_group_hash(*node_);
    trace_cache_->count_trace();
  } else {
    node_ = known;
  }
  rebind_to_next_value(self, {});
  return result.release().ptr();
}

// -- graphs --------------------------------------------------------------------------------------

py::object Capture::make_graph(const std::vector<int>& outputs,
                               const std::vector<phi::DDim>* dynamic_shapes) const {
  py::list calls, metas, examples;
  for (const TraceNode* each : trace()) {
    const TracedCall& call = each->call;
    py::list arguments;
    for (const Argument& argument : call.arguments) arguments.append(described(argument));
    calls.append(py::make_tuple(call.function->name, call.function->is_method, arguments,
                                call.keywords, described(call.result), call.has_gradient,
                                call.first_value, call.first_result, call.views));
    for (const TracedTensorMeta& kind : call.metas) {
      const phi::DDim& shape =
          dynamic_shapes == nullptr ? kind.shape : (*dynamic_shapes)[metas.size()];
      metas.append(py::make_tuple(phi::DataTypeToString(kind.dtype), phi::vectorize<int64_t>(shape),
                                  kind.stop_gradient, kind.is_contiguous, kind.is_parameter));
    }
  }
  if (dynamic_shapes != nullptr) {
    for (const auto& shapes : trace_cache_->examples_of(*node_)) {
      py::list example;
      for (const phi::DDim& shape : shapes) example.append(phi::vectorize<int64_t>(shape));
      examples.append(example);
    }
  }
  return trace_cache_->make_graph()(calls, metas, outputs, examples);
}

}  // namespace paddle_ngraph
