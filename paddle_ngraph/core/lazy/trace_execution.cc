#include "core/lazy/trace_execution.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/common/deferred_signals.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/dynamic_modes.h"
#include "core/paddle/exposure.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

std::optional<Reason> TraceExecution::run() {
  outputs_ = trace_.requested_values();
  TraceNode& node = trace_.node();
  std::optional<Reason> reason = outputs_.empty() ? Reason::kNewResults : Reason::kGuard;
  std::unique_ptr<py::error_already_set> raised;
  py::object graph;  // a strong reference, since another thread may drop the graph while it runs
  try {
    const auto found = node.graphs.find(outputs_);
    if (found != node.graphs.end()) {
      graph = found->second;
    } else if (!node.graph_breaks.empty() && !outputs_.empty()) {
      graph = make_graph_if_recurred();
      if (graph) node.graphs.emplace(outputs_, graph);
      if (!graph) reason = Reason::kNewResults;
    }
    if (graph) reason = run_graph(graph);
    if (!reason) return reason;
  } catch (py::error_already_set& error) {
    reason = Reason::kNoGraph;
    raised = std::make_unique<py::error_already_set>(error);
  }
  if (!call_operators()) throw py::error_already_set();
  if (raised != nullptr) throw py::error_already_set(*raised);
  return reason;
}

// -- graphs --------------------------------------------------------------------------------------

// Creates the graph for the outputs. Null if none is worth creating yet.
py::object TraceExecution::make_graph_if_recurred() {
  if (!has_recurred()) return {};
  const DeferredSignals deferral(DeferredSignals::Mode::kDeferred);
  py::object graph = make_graph();
  cache_.count_graph();
  return graph;
}

// Whether a graph for the outputs is created immediately: the first graph of a trace, or values
// that were requested before. Requested values may differ from call to call, so a graph for other
// values might never be used again.
bool TraceExecution::has_recurred() {
  constexpr size_t kMaxOutputSets = 256;
  TraceNode& node = trace_.node();
  if (node.graphs.empty() || node.outputs.erase(outputs_) > 0) return true;
  if (node.outputs.size() == kMaxOutputSets) node.outputs.clear();
  node.outputs.insert(outputs_);
  cache_.count_result_set();
  return false;
}

// The metadata of a value for `make_graph`.
static py::tuple described(const TracedTensorMeta& meta) {
  return py::make_tuple(phi::DataTypeToString(meta.dtype), phi::vectorize<int64_t>(meta.shape),
                        meta.stop_gradient, meta.is_contiguous, meta.is_parameter);
}

// The dtype of the inputs that numbers in an argument become.
static phi::DataType dtype_of_numbers(const Trace& trace, const TracedCall& call, size_t argument) {
  if (call.number_rules[argument] == NumberKind::kFloat) return phi::DataType::FLOAT32;
  if (call.number_rules[argument] != NumberKind::kInteger) return phi::DataType::INT64;
  return trace.meta_of(call.arguments[0].value).dtype;
}

py::object TraceExecution::make_graph() const {
  py::list calls, metas, number_metas, examples;
  const auto as_value = [](int value) { return py::cast(TracedValue{value}); };
  const auto as_input = [&](int number) { return as_value(trace_.num_values() + number); };
  const auto described_argument = [&](const Argument& argument) {
    return to_python(argument, as_value, as_input, [] { return py::none(); });
  };
  size_t num_numbers = 0;
  const auto add_numbers = [&](const auto& self, const Argument& argument,
                               phi::DataType dtype) -> void {
    if (argument.kind == Argument::Kind::kNumber) {
      number_metas.append(described({dtype, phi::make_ddim({}), true, true, false, {}, 0}));
      ++num_numbers;
    }
    for (const Argument& item : argument.items) self(self, item, dtype);
  };
  for (const TraceNode* each : nodes_to(trace_.node())) {
    const TracedCall& call = each->call;
    py::list arguments;
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      arguments.append(described_argument(call.arguments[i]));
      add_numbers(add_numbers, call.arguments[i], dtype_of_numbers(trace_, call, i));
    }
    calls.append(py::make_tuple(call.function->name, call.function->is_method, arguments,
                                call.keywords, described_argument(call.result), call.has_gradient,
                                call.first_value, call.first_result, call.views));
    for (const TracedTensorMeta& meta : call.metas) metas.append(described(meta));
  }
  metas = metas + number_metas;
  if (trace_.node().is_open) {
    for (const TraceSample& sample : trace_.node().samples) {
      py::list shapes;
      for (const phi::DDim& shape : sample.shapes) shapes.append(phi::vectorize<int64_t>(shape));
      for (size_t i = 0; i < num_numbers; ++i) shapes.append(py::list());
      examples.append(py::make_tuple(shapes, sample.numbers));
    }
  }
  return cache_.make_graph()(calls, metas, outputs_, examples);
}

// Computes the outputs by a graph. Returns the reason if the graph has not computed them.
std::optional<Reason> TraceExecution::run_graph(const py::object& graph) {
  py::list given;
  for (const auto& tensor : trace_.tensors()) {
    given.append(is_lazy(tensor.ptr()) ? py::none() : tensor);
  }
  for (const py::object& number : trace_.numbers()) given.append(number);
  if (!trace_.lines().empty()) graph.attr("note_lines")(py::dict(py::cast(trace_.lines())));
  if (graph.attr("is_open").cast<bool>()) return run_open_graph(graph, given);
  const py::object computed = graph(given);
  if (py::isinstance<py::int_>(computed)) return static_cast<Reason>(computed.cast<int>());
  materialize_outputs(py::list(computed));
  return std::nullopt;
}

namespace {

// The running statistics that a graph writes, and their values before the run.
class StatisticsBackup {
 public:
  StatisticsBackup(const py::object& graph, const py::list& given) {
    for (const py::handle& at : graph.attr("written_inputs")) {
      const py::object tensor = given[at.cast<size_t>()];
      const phi::DenseTensor& memory = *plain_tensor(tensor.ptr());
      const auto* const first = static_cast<const std::byte*>(memory.data());
      saved_.emplace_back(memory, std::vector<std::byte>(first, first + num_bytes(memory)));
    }
  }

  void restore() {
    const WeightWriteScope writes;
    for (auto& [memory, values] : saved_) {
      std::copy(values.begin(), values.end(), static_cast<std::byte*>(memory.data()));
    }
  }

 private:
  std::vector<std::pair<phi::DenseTensor, std::vector<std::byte>>> saved_;
};

}  // namespace

// As run_graph(), for the graph of an open trace. If it has raised an error, or computed other
// shapes, the operators are called instead, with the same random numbers and statistics.
std::optional<Reason> TraceExecution::run_open_graph(const py::object& graph,
                                                     const py::list& given) {
  const py::object random_state = graph.attr("random_state")();
  StatisticsBackup statistics(graph, given);
  py::object computed;
  try {
    computed = graph(given);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
  }
  const bool has_reason = computed && py::isinstance<py::int_>(computed);
  if (computed && !has_reason && have_shapes(py::list(computed))) {
    materialize_outputs(py::list(computed));
    return std::nullopt;
  }
  const auto reason = has_reason ? static_cast<Reason>(computed.cast<int>())
                      : computed ? Reason::kGuard
                                 : Reason::kNoGraph;
  if (has_reason && graph.attr("why_native").is_none()) return reason;
  graph.attr("restore_random_state")(random_state);
  statistics.restore();
  close_trace();
  return reason;
}

void TraceExecution::materialize_outputs(const py::list& results) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    materialize(&tensor_of(trace_.tensors()[outputs_[i]].ptr()), tensor_of(results[i].ptr()), "");
  }
}

// Whether the computed results have the shapes that the lazy tensors were given.
bool TraceExecution::have_shapes(const py::list& results) const {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto& lazy = tensor_of(trace_.tensors()[outputs_[i]].ptr());
    if (tensor_of(py::object(results[i]).ptr()).dims() != lazy.dims()) return false;
  }
  return true;
}

// Has traces of these calls get graphs of their own, since a graph with static shapes may succeed
// where one with dynamic shapes failed.
void TraceExecution::close_trace() {
  cache_.close(&trace_.node());
  trace_.node().graphs.erase(outputs_);
}

// -- operators, one by one -----------------------------------------------------------------------

// Returns false if Python's error is set.
bool TraceExecution::call_operators() {
  const bool mode = has_gradients();
  bool is_done = true;
  for (const TraceNode* each : nodes_to(trace_.node())) {
    set_gradients(each->call.has_gradient);
    is_done = static_cast<bool>(call_operator(each->call));
    if (!is_done) break;
  }
  set_gradients(mode);
  return is_done;
}

// Calls an operator, and gives the lazy tensors of its results their values. Returns null if
// Python's error is set.
py::object TraceExecution::call_operator(const TracedCall& call) const {
  py::object self;
  py::list positional;
  py::dict kwargs;
  const size_t first_keyword = call.arguments.size() - call.keywords.size();
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const py::object argument = to_python(
        call.arguments[i], [this](int value) { return trace_.tensors()[value]; },
        [this](int number) { return trace_.numbers()[number]; }, make_uninitialized_tensor);
    if (i == 0 && call.function->is_method) {
      self = argument;
    } else if (i < first_keyword) {
      positional.append(argument);
    } else {
      kwargs[call.keywords[i - first_keyword]] = argument;
    }
  }
  const py::tuple args(positional);
  auto computed = py::reinterpret_steal<py::object>(
      call_now(*call.function, self.ptr(), args.ptr(), kwargs.empty() ? nullptr : kwargs.ptr()));
  if (PyErr_Occurred() != nullptr) return {};
  const bool is_changed = self && call.function->rule.mutation != Mutation::kNone;
  materialize_results(call.result, is_changed ? self.ptr() : computed.ptr());
  return computed;
}

void TraceExecution::materialize_results(const Argument& expected, PyObject* computed) const {
  if (expected.kind == Argument::Kind::kConstant ||
      expected.kind == Argument::Kind::kUninitialized) {
    return;
  }
  if (expected.kind == Argument::Kind::kValue) {
    const paddle::Tensor& result = tensor_of(computed);
    materialize(&tensor_of(trace_.tensors()[expected.value].ptr()), result, result.name());
    return;
  }
  const PyObjects items = sequence_items(computed);
  for (size_t i = 0; i < expected.items.size(); ++i) {
    materialize_results(expected.items[i], items[i]);
  }
}

}  // namespace paddle_ngraph
