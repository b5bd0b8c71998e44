#include "core/lazy/capture.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/deferred_signals.h"
#include "core/common/error.h"
#include "core/lazy/argument_snapshot.h"
#include "core/lazy/call_matching.h"
#include "core/lazy/call_recording.h"
#include "core/lazy/garbage_collection.h"
#include "core/lazy/growing_lists.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/open_traces.h"
#include "core/lazy/python_arguments.h"
#include "core/lazy/result_shapes.h"
#include "core/lazy/trace_execution.h"
#include "core/lazy/value_ranges.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/call_stacks.h"
#include "core/paddle/dynamic_modes.h"
#include "core/paddle/gradient_gates.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

thread_local Capture* current_capture = nullptr;
thread_local bool saved_tensor_hooks_active = false;

constexpr char kRemoveHook[] = "_remove_grad_hook";

}  // namespace

// -- threads -------------------------------------------------------------------------------------

NoCapture::NoCapture() : before_(std::exchange(current_capture, nullptr)) {}

NoCapture::~NoCapture() { current_capture = before_; }

void set_saved_tensor_hooks_active(bool on) { saved_tensor_hooks_active = on; }

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

// -- a call of the captured function -------------------------------------------------------------

Capture::Capture(std::shared_ptr<TraceCache> trace_cache)
    : trace_cache_(std::move(trace_cache)), trace_(trace_cache_->root()) {
  outer_ = std::exchange(current_capture, this);
}

Capture::~Capture() {
  stop_tracking_reads();
  current_capture = outer_;
}

Capture* Capture::current() { return current_capture; }

void Capture::begin() {
  auto root = trace_cache_->root();
  const auto memory = stop_tracking_reads();
  const auto hooks = hooks_.release();
  // The former trace is destroyed last: its tensors' destructors may call Python, which may call
  // this function again.
  Trace former(std::move(root));
  std::swap(trace_, former);
  for (const auto& tensor : former.tensors()) lazy_tensors().erase(tensor.ptr());
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

bool Capture::may_capture(bool has_gradient) const {
  constexpr int kMaxTraceValues = 4096;
  if (has_gradient && !trace_cache_->trains()) return false;
  if (saved_tensor_hooks_active || !is_dynamic_ || trace_.num_values() > kMaxTraceValues) {
    return false;
  }
  return !has_mixed_precision();
}

void Capture::record(Reason reason, int64_t start) {
  has_run_ = true;
  record_event(reason, trace_cache_->id(), start);
}

void Capture::end() {
  if (!has_run_) record(Reason::kNotCaptured, begun_at_);
}

// A reason for a graph break, followed by the user's line of Python: the innermost one outside
// Paddle, the plugin's frontends and generated code.
static std::string with_user_line(const std::string& reason) {
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

bool Capture::flush(const std::string& reason) {
  if (!wait_for_compute()) return false;
  if (trace_.is_empty()) {
    if (trace_.is_recording()) begin();
    trace_.clear_new();
    return true;
  }
  TraceNode& node = trace_.node();
  const bool is_new_end = node.graph_breaks.empty();
  if (node.graph_breaks.count(reason) == 0) {
    node.graph_breaks.emplace(reason, with_user_line(reason));
  }
  if (is_new_end) {
    trace_cache_->add_end(trace_.root(), &node, {trace_.shapes(), trace_.numbers()});
  }
  if (trace_.is_recording()) record(Reason::kGuard, recording_since_);
  const bool is_done = trace_.is_recording() || compute(/*is_end=*/true);
  const py::error_scope saved_error;
  begin();
  return is_done;
}

bool Capture::compute(bool is_end) {
  const int64_t start = ticks();
  if (trace_.is_empty()) trace_.start_recording();
  recording_since_ = start;
  if (trace_.is_recording()) return true;
  // Begun first, so that it ends when this object is consistent. An exception in the execution
  // is thus one of the graph or of an operator, except a Ctrl-C.
  const DeferredSignals deferral(DeferredSignals::Mode::kCtrlCRaises);
  const NoCapture none;
  const GcPause gc_pause;
  is_computing_ = true;
  computing_ = std::this_thread::get_id();
  std::string error;
  py::object type, value, trace;
  try {
    const auto reason = TraceExecution(trace_cache_.get(), trace_).run();
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
  for (const auto& tensor : trace_.tensors()) {
    if (!error.empty() && is_lazy(tensor.ptr()) && is_uninitialized(tensor.ptr(), true)) {
      failed_tensors().emplace(tensor.ptr(), error);
      tensor.inc_ref();
    }
    lazy_tensors().erase(tensor.ptr());
  }
  if (error.empty()) {
    try {
      hooks_.register_all();
    } catch (py::error_already_set& raised) {
      error = raised.what();
      type = raised.type(), value = raised.value(), trace = raised.trace();
    }
  }
  const auto hooks = hooks_.release();
  const auto memory = stop_tracking_reads();
  trace_.start_recording();
  // Set last: another thread may end the capture as soon as this thread releases the GIL.
  is_computing_ = false;
  if (error.empty()) return true;
  PyErr_Restore(type.release().ptr(), value.release().ptr(), trace.release().ptr());
  return false;
}

// -- a call of an operator -----------------------------------------------------------------------

// Whether the results of a call would alias a copy, where the user expects an alias of the copied
// tensor.
bool Capture::aliases_a_copy(const TracedCall& call, const std::vector<py::object>& copies) const {
  return std::any_of(call.views.begin(), call.views.end(), [&](const auto& view) {
    if (view.second < trace_.num_values()) return false;
    PyObject* tensor = trace_.tensor_of_value(view.second);
    return std::any_of(copies.begin(), copies.end(),
                       [&](const py::object& copy) { return copy.ptr() == tensor; });
  });
}

// Extends the trace by a known call.
void Capture::follow(TraceNode* node) {
  if (!trace_.is_recording()) {
    for (PyObject* tensor : trace_.new_tensors()) track_read(tensor);
  }
  trace_.follow(node);
  if (!trace_.is_recording() && notes_lines()) trace_.note_line(calling_line());
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

// Whether a subscript of integers and slices has an integer beyond its axis, by which Python ends a
// loop over a tensor.
static bool is_beyond_axis(const InterceptedFunction& function, const PyObjects& given) {
  if (function.rule.value_rule.kind != ValueRule::Kind::kSubscript || given.size() != 2 ||
      !is_tensor(given[0])) {
    return false;
  }
  const phi::DDim& dims = tensor_of(given[0]).dims();
  const PyObjects items = PyTuple_Check(given[1]) ? sequence_items(given[1]) : PyObjects{given[1]};
  if (items.size() > static_cast<size_t>(dims.size())) return false;
  bool is_beyond = false;
  for (size_t axis = 0; axis < items.size(); ++axis) {
    if (is_slice(items[axis])) {
      const PyObjects bounds = sequence_items(items[axis]);
      if (!std::all_of(bounds.begin(), bounds.end(), is_plain_python)) return false;
      continue;
    }
    if (!PyLong_CheckExact(items[axis])) return false;
    int overflow = 0;
    const int64_t index = PyLong_AsLongLongAndOverflow(items[axis], &overflow);
    is_beyond = is_beyond || (overflow == 0 && (index >= dims[axis] || index < -dims[axis]));
  }
  return is_beyond;
}

PyObject* Capture::call(const InterceptedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  if (!wait_for_compute()) return nullptr;
  if (function.rule.mutation != Mutation::kNone) {
    return call_mutating(function, self, args, kwargs);
  }
  const bool gradient = has_gradients();
  if (!may_capture(gradient)) return call_with_graph_break(function, self, args, kwargs);
  if (!function.rule.is_stochastic && has_only_shape_tensors({self, args, kwargs})) {
    return call_shape_query(function, self, args, kwargs);
  }
  if (has_only_known_integers(trace_, args, function.is_method ? self : nullptr) &&
      !is_any_lazy(nullptr, kwargs)) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  if (trace_.node().growing_lists.count(&function) > 0) {
    const auto parts = parts_of_list(trace_, function, args, kwargs);
    if (parts) return join_parts(function, *parts, self, args, kwargs);
  }
  std::vector<py::object> copies;
  PyObjects given = arguments_of(function, self, args, kwargs);
  snapshot_arguments(trace_, function, &given, &copies);
  if (is_beyond_axis(function, given)) {
    const NoCapture none;
    const py::object placeholder = placeholder_of(self);
    PyObject* const result = call_now(function, placeholder.ptr(), args, kwargs);
    if (result == nullptr) return nullptr;
    Py_DECREF(result);
  }
  if (!satisfies(function.rule.value_rule, given, trace_)) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  TraceNode* const next = find_next(&trace_, function, gradient, given, kwargs);
  if (next != nullptr) {
    if (aliases_a_copy(next->call, copies)) {
      return call_with_graph_break(function, self, args, kwargs);
    }
    follow(next);
    if (!trace_.is_recording()) return defer(next->call);
    return replay_call(next->call, function, self, args, kwargs);
  }
  if (has_other_length(trace_.node(), function, args)) {
    trace_.node().growing_lists.insert(&function);
    const auto parts = parts_of_list(trace_, function, args, kwargs);
    if (parts) return join_parts(function, *parts, self, args, kwargs);
  }
  if (!trace_.is_recording() && !compute()) {
    const py::error_scope saved_error;
    begin();
    return nullptr;
  }
  return record_call(function, gradient, given, self, args, kwargs);
}

// Joins the known parts of a list at once, and the others as calls of the trace.
PyObject* Capture::join_parts(const InterceptedFunction& function,
                              const std::vector<ListPart>& parts, PyObject* self, PyObject* args,
                              PyObject* kwargs) {
  const bool is_stack = function.rule.list_rule == ListRule::kStacked;
  std::vector<py::object> joined;
  for (const ListPart& part : parts) {
    std::vector<py::object> members;
    for (PyObject* each : part.members) members.push_back(py::reinterpret_borrow<py::object>(each));
    if (!part.is_known && !is_stack) {
      joined.insert(joined.end(), members.begin(), members.end());
      continue;
    }
    const py::tuple given = with_members(args, members);
    const auto join = [&] {
      if (!part.is_known) return call(function, self, given.ptr(), kwargs);
      const NoCapture none;
      return call_now(function, self, given.ptr(), kwargs);
    };
    joined.push_back(py::reinterpret_steal<py::object>(join()));
    if (!joined.back()) return nullptr;
  }
  if (parts.size() == 1) return joined.front().release().ptr();
  const py::tuple given = with_members(args, joined);
  return is_stack ? call(concatenation(), self, given.ptr(), nullptr)
                  : call(function, self, given.ptr(), kwargs);
}

PyObject* Capture::call_with_graph_break(const InterceptedFunction& function, PyObject* self,
                                         PyObject* args, PyObject* kwargs) {
  const bool may_write = function.rule.mutation != Mutation::kNone;
  if (!flush(function.name) || !flush_other_threads(self, args, kwargs, may_write)) return nullptr;
  const NoCapture none;
  note_native_call(function.name);
  return call_now(function, self, args, kwargs);
}

PyObject* Capture::call_hooking(const InterceptedFunction& function, PyObject* self, PyObject* args,
                                PyObject* kwargs) {
  if (!wait_for_compute()) return nullptr;
  const auto lazy = lazy_tensors().find(self);
  if (lazy == lazy_tensors().end() && error_of(self) == nullptr) {
    const NoCapture none;
    return call_now(function, self, with_hook_ids(args).ptr(), kwargs);
  }
  if (PyTuple_GET_SIZE(args) == 1 && hooks_.remove(PyTuple_GET_ITEM(args, 0))) Py_RETURN_TRUE;
  const bool is_own = lazy != lazy_tensors().end() && lazy->second == this;
  if (is_own && has_gradients() && !stops_gradient(self) && function.name != kRemoveHook) {
    return hooks_.add(function, self, args, kwargs).release().ptr();
  }
  return call_with_graph_break(function, self, with_hook_ids(args).ptr(), kwargs);
}

// -- calls on known tensors ----------------------------------------------------------------------

bool Capture::has_only_shape_tensors(const std::array<PyObject*, 3>& arguments) const {
  if (shape_tensors_.empty()) return false;
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
    return trace_.is_deferred(argument) || error_of(argument) != nullptr ? argument : nullptr;
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

PyObject* Capture::call_shape_query(const InterceptedFunction& function, PyObject* self,
                                    PyObject* args, PyObject* kwargs) {
  constexpr size_t kMaxShapeTensors = 4096;
  py::list given;
  for (PyObject* argument : sequence_items(args)) given.append(placeholder_of(argument));
  const py::tuple shapes(given);
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, shapes.ptr(), kwargs));
  if (PyErr_Occurred() != nullptr) return result.release().ptr();
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

// -- deferred calls ------------------------------------------------------------------------------

PyObject* Capture::defer(const TracedCall& call) {
  return make_lazy_result(call.result, call).release().ptr();
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
  const TracedTensorMeta& meta = call.meta_of(result.value);
  const auto& shapes = trace_.next_shapes;
  const phi::DDim& shape = shapes.empty() ? meta.shape : shapes[result.value - call.first_result];
  auto lazy = make_tensor({meta.dtype, shape}, meta.stop_gradient);
  trace_.add_result(lazy.ptr());
  lazy_tensors().emplace(lazy.ptr(), this);
  return lazy;
}

// -- calls that are computed at once -------------------------------------------------------------

// Computes a call that has a recorded node, as an unknown call before it was, and checks the
// result.
PyObject* Capture::replay_call(const TracedCall& call, const InterceptedFunction& function,
                               PyObject* self, PyObject* args, PyObject* kwargs) {
  trace_.release_unused();
  const NoCapture none;
  note_native_call(function.name);
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  const bool is_computed = PyErr_Occurred() == nullptr;
  if (is_computed && match_result(&trace_, call, result.ptr())) return result.release().ptr();
  const py::error_scope saved_error;
  begin();
  return result.release().ptr();
}

// Notes where sizes and numbers of a recorded call may differ, if the rule of the operator gives
// the shapes of the results. Returns false if the call cannot follow a trace with open sizes.
static bool note_open_places(const Trace& trace, const PyObjects& given, TracedCall* call) {
  const auto is_open = [&](int value) {
    return value < call->first_value && trace.meta_of(value).has_open_sizes();
  };
  call->has_static_results =
      std::none_of(call->arguments.begin(), call->arguments.end(),
                   [&](const Argument& each) { return reads_open_sizes(each, is_open); });
  call->number_rules = number_rules(*call, given);
  call->places = parameter_places(*call);
  ResultShapes shapes;
  const bool has_shapes = call->places && find_result_shapes(*call, given, &shapes);
  for (int i = 0; i < call->num_results() && call->places; ++i) {
    const phi::DDim& shape = call->meta_of(call->first_result + i).shape;
    if (!has_shapes || shapes[i] != shape) call->places.reset();
  }
  return call->has_static_results || call->places;
}

PyObject* Capture::record_call(const InterceptedFunction& function, bool has_gradient,
                               const PyObjects& given, PyObject* self, PyObject* args,
                               PyObject* kwargs) {
  trace_.release_unused();
  auto call = describe_call(&trace_, function, has_gradient, given, kwargs);
  if (!call && !(flush(function.name) && flush_other_threads(self, args, kwargs, false))) {
    return nullptr;
  }
  const NoCapture none;
  note_native_call(function.name);
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  // Paddle may return a result and an error, of which Python makes a SystemError.
  if (PyErr_Occurred() != nullptr) {
    const py::error_scope saved_error;
    flush(function.name);
    return result.release().ptr();
  }
  if (!call) return result.release().ptr();
  trace_.add_new(/*are_results=*/false);
  if (!describe_result(&trace_, result.ptr(), &*call)) {
    flush(function.name);
    return result.release().ptr();
  }
  if (!note_open_places(trace_, given, &*call)) {
    flush(function.name);
    return result.release().ptr();
  }
  trace_.record(std::move(*call));
  trace_cache_->count_trace();
  return result.release().ptr();
}

// -- mutating calls ------------------------------------------------------------------------------
//
// The tensor is another value from then on. Earlier calls have read the former value, to which the
// user has no reference any more.

// The tensor that a mutating call changes: self of a method, the first argument of an operator;
// null if that is no tensor.
static PyObject* mutated_by(const InterceptedFunction& function, PyObject* self, PyObject* args) {
  if (function.is_method) return self;
  PyObject* const first = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : nullptr;
  return first != nullptr && is_tensor(first) ? first : nullptr;
}

// Whether an operator that writes its result to the first argument computes it in the dtype of that
// argument: others are converted to it, which is no operator of a program.
static bool computes_in_dtype_of_first(const PyObjects& given) {
  const auto dtype = tensor_of(given[0]).dtype();
  const auto is_float = [](phi::DataType each) {
    return each == phi::DataType::FLOAT32 || each == phi::DataType::FLOAT64;
  };
  const auto is_index = [](phi::DataType each) {
    return each == phi::DataType::INT32 || each == phi::DataType::INT64;
  };
  bool is_same = true;
  const auto look = [&](PyObject* tensor) {
    const auto other = tensor_of(tensor).dtype();
    is_same = is_same && (other == dtype || other == phi::DataType::BOOL ||
                          (is_float(dtype) && is_index(other)));
  };
  return std::all_of(given.begin(), given.end(),
                     [&](PyObject* each) { return visit_tensors(each, look); }) &&
         is_same;
}

PyObject* Capture::call_mutating(const InterceptedFunction& function, PyObject* self,
                                 PyObject* args, PyObject* kwargs) {
  const bool gradient = has_gradients();
  PyObject* const changed = mutated_by(function, self, args);
  if (changed == nullptr) return call_with_graph_break(function, self, args, kwargs);
  if (trace_.index_of(changed) < 0 && may_mutate_eagerly(function, changed, {self, args, kwargs})) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  const bool is_layout = function.rule.mutation == Mutation::kLayout;
  const phi::DenseTensor* const known =
      is_layout && !trace_.is_deferred(changed) ? plain_tensor(changed) : nullptr;
  if (known != nullptr && known->meta().is_contiguous()) {
    return py::reinterpret_borrow<py::object>(changed).release().ptr();
  }
  if (!may_capture(gradient) || !may_mutate(function, changed)) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  std::vector<py::object> copies;
  PyObjects given = arguments_of(function, self, args, kwargs);
  snapshot_arguments(trace_, function, &given, &copies);
  if (!satisfies(function.rule.value_rule, given, trace_) ||
      (!function.is_method && !computes_in_dtype_of_first(given))) {
    return call_with_graph_break(function, self, args, kwargs);
  }
  if (trace_.is_recording()) trace_.release_unused();
  TraceNode* const next = find_next(&trace_, function, gradient, given, kwargs);
  if (next == nullptr && !trace_.is_recording() && !compute()) {
    const py::error_scope saved_error;
    begin();
    return nullptr;
  }
  if (trace_.is_recording()) return record_mutation(function, next, given, self, args, kwargs);
  follow(next);
  defer_mutation(next->call, changed);
  const bool returns_tensor = is_layout || !function.is_method;
  return py::reinterpret_borrow<py::object>(returns_tensor ? changed : Py_None).release().ptr();
}

// Whether a writing call is independent of deferred operators: its arguments are materialized, and
// no deferred operator reads the written memory.
bool Capture::may_mutate_eagerly(const InterceptedFunction& function, PyObject* changed,
                                 const std::array<PyObject*, 3>& arguments) const {
  return function.rule.mutation != Mutation::kStopGradient && shape_tensors_.count(changed) == 0 &&
         has_only_materialized_tensors(arguments, false) &&
         owner_of({changed, nullptr, nullptr}, true) == nullptr;
}

// Whether a write to a tensor may be deferred as a call of the trace. Not if the tensor has
// aliases, which would observe the write.
bool Capture::may_mutate(const InterceptedFunction& function, PyObject* tensor) const {
  const int value = trace_.index_of(tensor);
  if (value < 0) return function.rule.mutation == Mutation::kValues && owns_memory(tensor);
  if (hooks_.has(tensor)) return false;  // the hooks are those of the former value
  if (!trace_.is_result(value)) return false;
  if (function.rule.mutation != Mutation::kValues) return true;
  // A write is not deferred if stop_gradient of the tensor was set: a written value that has a
  // gradient would let the gradient pass again.
  const TracedCall& call = trace_.call_of(value);
  if (call.function->rule.mutation == Mutation::kStopGradient) return false;
  const TracedTensorMeta& meta = call.meta_of(value);
  // If gradients are off, autograd treats the tensor as its former value even after the write: the
  // mutation must not be deferred where the tensor has a gradient.
  return meta.is_contiguous && (meta.stop_gradient || has_gradients()) && !trace_.is_aliased(value);
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

void Capture::defer_mutation(const TracedCall& call, PyObject* tensor) {
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
  trace_.rebind_to_next_value(tensor, std::move(other));
  const bool stops = call.metas.back().stop_gradient;
  if (stops != stops_gradient(tensor)) set_stop_gradient(tensor, stops);
}

// Calls a mutating function, and extends the trace; `known`: the recorded node, if there is one.
PyObject* Capture::record_mutation(const InterceptedFunction& function, TraceNode* known,
                                   const PyObjects& given, PyObject* self, PyObject* args,
                                   PyObject* kwargs) {
  const bool gradient = has_gradients();
  PyObject* const changed = given[0];
  std::optional<TracedCall> call;
  if (known == nullptr) {
    const bool is_own =
        function.rule.mutation != Mutation::kStopGradient || !trace_.shares_autograd_meta(changed);
    if (is_own) call = describe_call(&trace_, function, gradient, given, kwargs);
    if (!call && !(flush(function.name) && flush_other_threads(self, args, kwargs, true))) {
      return nullptr;
    }
  }
  const int former_value = trace_.index_of(changed);
  const auto former_node = autograd_node_of(tensor_of(changed));
  const phi::DenseTensor* const former = plain_tensor(changed);
  const auto memory = former == nullptr ? nullptr : former->Holder();
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  if (known == nullptr && !call) return result.release().ptr();
  const auto meta = PyErr_Occurred() == nullptr ? traced_meta(changed) : std::nullopt;
  const bool is_known = known != nullptr && meta && has_meta(trace_, *meta, 0, known->call);
  // Whether autograd does not see the new value of a tensor that requires a gradient, since
  // gradients are off or the operator has none: the gradient passes as if the tensor had its former
  // value.
  const bool is_unseen = meta && !meta->stop_gradient &&
                         function.rule.mutation == Mutation::kValues &&
                         autograd_node_of(tensor_of(changed)) == former_node;
  if (!meta || is_unseen || (known != nullptr && !is_known)) {
    const py::error_scope saved_error;
    flush(function.name);
    return result.release().ptr();
  }
  if (known != nullptr) {
    trace_.follow(known);
  } else {
    trace_.add_new(/*are_results=*/false);
    call->first_result = trace_.num_values();
    call->result.kind = Argument::Kind::kValue;
    call->result.value = call->first_result;
    call->metas.push_back(*meta);
    // The new value is recorded as a view of the former one: setting stop_gradient keeps the memory
    // and the grad node, which counts if stop_gradient is reset.
    const bool is_view =
        function.rule.mutation == Mutation::kStopGradient ||
        (function.rule.mutation == Mutation::kLayout && plain_tensor(changed)->Holder() == memory);
    if (is_view) call->views[call->first_result] = former_value;
    if (!note_open_places(trace_, given, &*call)) {
      flush(function.name);
      return result.release().ptr();
    }
    trace_.record(std::move(*call));
    trace_cache_->count_trace();
  }
  trace_.rebind_to_next_value(changed, {});
  return result.release().ptr();
}

}  // namespace paddle_ngraph
