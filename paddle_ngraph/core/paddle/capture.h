// Capture of the operators that a function of dynamic mode calls.
//
// Python runs the function in each call. Deferrable operators are not computed when they are
// called, but when a caller needs their values: their results are lazy tensors, whose shape and
// dtype are known from an earlier call with the same operators on tensors with the same metadata.
// Any other call into Paddle (call_interception.h) is a graph break: all deferred operators are
// computed first, as one graph, or operator by operator.
//
// So nothing of the function is assumed, and no guards are needed: the computed operators are
// exactly those that this call has requested.
#pragma once

#include <pybind11/pytypes.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/allocator.h"
#include "paddle/phi/core/ddim.h"
#include "paddle/phi/core/tensor_base.h"
#include "paddle/phi/core/tensor_meta.h"

#include "core/engine/events.h"
#include "core/paddle/exposure.h"
#include "core/paddle/integer_ranges.h"

namespace paddle_ngraph {

struct InterceptedFunction;

// The metadata of a tensor in a trace. Tensors with equal metadata are interchangeable there.
struct TracedTensorMeta {
  phi::DataType dtype;
  phi::DDim shape;
  bool stop_gradient;
  bool is_contiguous;
  bool is_parameter;
  // Compared, too, since some operators return an alias or a copy depending on strides.
  phi::DDim strides;

  bool operator==(const TracedTensorMeta& other) const;
};

// The reason that is recorded where a captured function ends without a graph break.
constexpr const char* kEndOfFunction = "the end of the function";

// An argument or result of a call: a value, by its index in the trace; a list, tuple or slice; a
// constant; or an uninitialized tensor, which is never read or computed.
struct Argument {
  enum class Kind { kValue, kSequence, kConstant, kUninitialized };
  Kind kind = Kind::kConstant;
  int value = -1;
  PyTypeObject* type = nullptr;  // type of a kSequence: list, tuple or slice
  std::vector<Argument> items;
  pybind11::object constant;
  bool is_any_of_type = false;  // whether the constant (a CPU place) equals all others of its type
  // Dtype and shape of a kUninitialized tensor that has no elements, and so needs no memory.
  std::shared_ptr<const phi::DenseTensorMeta> empty;
  bool stop_gradient = true;
};

// Stands for a value, by its index in the trace, in the calls that `make_graph` gets.
struct TracedValue {
  int index;
};

// A call of an operator. It appends to the values of the earlier calls: first the tensors that no
// earlier call has used, then its results.
struct TracedCall {
  const InterceptedFunction* function = nullptr;
  bool has_gradient = true;
  // Positional arguments, with self of a method first; then keyword arguments.
  std::vector<Argument> arguments;
  std::vector<pybind11::str> keywords;
  Argument result;
  int first_value = 0;
  int first_result = 0;
  std::vector<TracedTensorMeta> metas;
  // For each result that is an alias: index of the result -> index of the value whose memory it
  // shares.
  std::map<int, int> views;
};

// A node in the tree of traces: a call that follows those of its ancestors, and the graphs of the
// trace that ends with this call.
struct TraceNode {
  explicit TraceNode(TraceNode* parent = nullptr) : parent(parent) {}

  TraceNode* parent;
  TracedCall call;
  // Hash of the calls up to this one; equal for traces that differ in sizes only.
  size_t group_hash = 0;
  std::vector<std::unique_ptr<TraceNode>> children;
  // Reason -> reason and source line of a graph break after this call.
  std::map<std::string, std::string> graph_breaks;
  // Indices of requested values -> graph that computes them.
  std::map<std::vector<int>, pybind11::object> graphs;
  // Sets of requested values that were needed, but have no graph yet.
  std::set<std::vector<int>> outputs;
};

// The calls that traces have in common if they differ in sizes only, and the graphs with dynamic
// shapes, which compute any of these traces.
struct TracePattern {
  std::vector<TracedCall> calls;
  std::vector<phi::DDim> shapes;  // shapes of all values of the traces; -1: dynamic dimension
  // Indices of requested values -> graph that computes them.
  std::map<std::vector<int>, pybind11::object> graphs;
};

// All traces of one captured function. Guarded by the GIL.
class TraceCache {
 public:
  // `make_graph(calls, metas, outputs, examples)` takes the calls, the metadata of values, the
  // indices of the requested values, and, where the metadata has dynamic dimensions (-1), some
  // example shapes of all values. It returns a callable that computes the requested values from the
  // inputs, or returns the number of the reason (engine/events.h) why operators are to be called
  // one by one. `trains`: whether calls that may get a gradient are captured, too.
  TraceCache(pybind11::object make_graph, bool trains);

  // The id of the traces in events.
  uint64_t id() const { return id_; }

  bool trains() const { return trains_; }

  const std::shared_ptr<TraceNode>& root();
  const pybind11::object& make_graph() const { return make_graph_; }
  // Count a new trace and a new graph. At kMaxTraces all traces are dropped, at kMaxGraphs all
  // graphs, too.
  void count_trace();
  void count_graph();

  // Adds the trace that ends at `node` to its group, for patterns and example shapes of the group.
  // Ignores a trace of a tree that was dropped meanwhile.
  void add_end(const TraceNode& root, TraceNode& node);
  // The pattern of a trace, which is created if its group has enough traces; else null.
  std::shared_ptr<TracePattern> find_or_make_pattern(const TraceNode& node);
  // The shapes of all values in some recorded traces of the group of `node`.
  std::vector<std::vector<phi::DDim>> examples_of(const TraceNode& node) const;
  // Has each trace of this group get a graph of its own, because no common graph could be computed.
  void specialize_group(const TraceNode& node);

  static constexpr size_t kMaxTraces = 60000;
  static constexpr size_t kMaxGraphs = 256;
  // Maximum number of traces of a pattern that get graphs of their own, with static shapes.
  static constexpr size_t kMaxStaticGraphs = 2;

  // Lists the nodes with graphs or graph breaks, each as (number of calls, graph breaks, graphs);
  // for tests and reports.
  pybind11::list ends() const;

 private:
  std::shared_ptr<TraceNode> root_;
  pybind11::object make_graph_;
  bool trains_;
  const uint64_t id_;
  void clear_traces();
  void clear();

  // The traces with one group hash: they may be equal except for sizes.
  struct TraceGroup {
    std::vector<TraceNode*> ends;
    std::vector<std::shared_ptr<TracePattern>> patterns;
    // Whether each trace gets a graph of its own, not one of a pattern.
    bool is_specialized = false;
  };
  std::unordered_map<size_t, TraceGroup> groups_;

  uint64_t settings_version_ = 0;
  size_t num_traces_ = 0;
  size_t graphs_ = 0;
};

// Captures the operators that this thread calls while the object lives. Call flush() before its
// end.
class Capture {
 public:
  Capture(std::shared_ptr<TraceCache> trace_cache, pybind11::object tracer);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // The innermost capture of this thread; null without one.
  static Capture* current();

  // Handles a call of a deferrable operator. Returns null with Python's error set on failure.
  PyObject* call(const InterceptedFunction& function, PyObject* self, PyObject* args,
                 PyObject* kwargs);

  // Whether there are tensors among the arguments, and the contents of all of them depend on shapes
  // only.
  bool has_only_shape_tensors(const std::array<PyObject*, 3>& arguments) const;

  // Whether no tensor among the arguments is lazy, and all may be passed out with their memory.
  bool has_only_materialized_tensors(const std::array<PyObject*, 3>& arguments,
                                     bool exposes_memory) const;

  // Whether the tensors' contents depend on shapes only, and no deferred operator reads their
  // memory, so that their data may be passed out.
  bool may_expose_data(const std::array<PyObject*, 3>& arguments) const;

  // Computes the deferred calls, which ends the trace here, and then calls the function at once.
  PyObject* call_with_graph_break(const InterceptedFunction& function, PyObject* self,
                                  PyObject* args, PyObject* kwargs);

  // Handles a call that changes a tensor, see Mutation.
  PyObject* call_mutating(const InterceptedFunction& function, PyObject* self, PyObject* args,
                          PyObject* kwargs);

  // Records a tensor that was computed at once, such as zeros that later calls fill.
  void note_eager_result(PyObject* result);

  // Calls a function whose results depend on shapes only. The call is no part of the trace, which
  // has static shapes.
  PyObject* call_shape_query(const InterceptedFunction& function, PyObject* self, PyObject* args,
                             PyObject* kwargs);

  // Sets whether this thread calls operators at once (dynamic mode), or builds a static program.
  void set_dynamic(bool on) { is_dynamic_ = on; }

  // Computes all deferred operators and ends the trace for `reason`. Returns false if Python's
  // error is set.
  bool flush(const std::string& reason);

  // Records a call of the captured function of which no operator was deferred; after the last
  // flush().
  void end();

  // flush() on behalf of another thread: later calls of this thread still extend the trace.
  bool flush_for_other_thread();

  // Resets the state of a capture in a forked process, where the thread that computed does not
  // exist.
  void reset_lost_thread();

 private:
  // The arguments of a call, with copies of tensors that may be written before the deferred call is
  // computed, and with Python scalars and Paddle tensors in place of their NumPy equivalents.
  std::vector<PyObject*> snapshot_arguments(const InterceptedFunction& function,
                                            const std::vector<PyObject*>& given,
                                            std::vector<pybind11::object>* copies) const;
  PyObject* snapshot_argument(PyObject* argument, const InterceptedFunction& function,
                              bool is_number, std::vector<pybind11::object>* copies,
                              int depth = 0) const;
  std::optional<pybind11::list> known_int_list(PyObject* argument) const;
  bool append_known_integers(PyObject* tensor, pybind11::list* numbers) const;
  // Whether a tensor is lazy, or will be when the recorded call is replayed.
  bool is_deferred(PyObject* tensor) const;
  bool has_only_known_integers(PyObject* args, PyObject* self) const;
  bool satisfies(const ValueRule& rule, const std::vector<PyObject*>& given) const;
  using Ranges = std::unordered_map<int, std::optional<IntegerRange>>;
  std::optional<IntegerRange> range_of(int number, Ranges* known) const;
  std::optional<IntegerRange> range_of_column(int number, int64_t column, int64_t columns,
                                              Ranges* known) const;
  std::optional<IntegerRange> range_of_result(const TracedCall& call, int number,
                                              Ranges* known) const;
  std::optional<IntegerRange> range_of(const Argument& argument, Ranges* known) const;
  TraceNode* find_next(const InterceptedFunction& function, bool has_gradient,
                       const std::vector<PyObject*>& given, PyObject* kwargs);
  bool matches(const Argument& expected, PyObject* given, const TracedCall& call);
  bool matches_value(const Argument& expected, PyObject* given, const TracedCall& call);
  PyObject* defer(TraceNode& node);
  bool may_mutate_eagerly(const InterceptedFunction& function, PyObject* self, PyObject* args,
                          PyObject* kwargs) const;
  bool may_mutate(const InterceptedFunction& function, PyObject* tensor) const;
  bool owns_memory(PyObject* tensor) const;
  bool is_aliased(int number) const;
  bool shares_autograd_meta(PyObject* tensor) const;
  const TracedCall& call_of(int number) const;
  const TracedTensorMeta& known_meta(int number) const;
  void defer_mutation(const TraceNode& node, PyObject* tensor);
  void rebind_to_next_value(PyObject* tensor, pybind11::object former);
  PyObject* record_mutation(const InterceptedFunction& function, TraceNode* known,
                            const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                            PyObject* kwargs);
  PyObject* replay_call(TraceNode& node, PyObject* self, PyObject* args, PyObject* kwargs);
  PyObject* record_call(const InterceptedFunction& function, bool has_gradient,
                        const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                        PyObject* kwargs);
  std::optional<TracedCall> describe_call(const InterceptedFunction& function,
                                          const std::vector<PyObject*>& given, PyObject* kwargs);
  bool describe(PyObject* given, bool may_be_tensor, TracedCall& call, Argument& found,
                int depth = 0);
  bool may_defer(const TracedCall& call) const;
  bool describe_result(PyObject* result, TracedCall& call, Argument& found);
  pybind11::object make_lazy_result(const Argument& result, const TracedCall& call);
  // `is_end`: whether the trace ends here. Otherwise operators are recorded next, and the event is
  // that of flush().
  bool compute(bool is_end = false);
  void record(Reason reason, int64_t start);
  // Computes the requested lazy tensors. Returns the reason for an event if the operators were
  // called one by one.
  std::optional<Reason> compute_outputs();
  bool has_recurred(const std::vector<int>& outputs);
  std::optional<Reason> compute_graph(const pybind11::object& graph,
                                      const std::vector<int>& outputs);
  bool have_shapes(const pybind11::list& results, const std::vector<int>& outputs) const;
  void specialize_group(const std::vector<int>& outputs);
  bool compute_eagerly();
  bool match_result(const Argument& expected, PyObject* result, const TracedCall& call);
  void materialize_results(const Argument& expected, PyObject* computed);
  bool wait_for_compute() const;
  pybind11::object argument(const Argument& of) const;
  std::vector<TraceNode*> trace() const;
  std::vector<int> outputs() const;
  pybind11::object find_or_make_graph(const std::vector<int>& outputs);
  pybind11::object make_graph(const std::vector<int>& outputs,
                              const std::vector<phi::DDim>* dynamic_shapes) const;
  bool may_capture(bool has_gradient) const;
  bool has_gradient() const;
  int value_index(PyObject* tensor) const;
  void begin();
  void add(PyObject* tensor, bool is_result);
  void track_read(PyObject* tensor);
  std::vector<std::unique_ptr<const MemoryPin>> stop_tracking_reads();
  void release_unused();
  bool aliases_a_copy(const TracedCall& call, const std::vector<pybind11::object>& copies) const;

  std::shared_ptr<TraceCache> trace_cache_;
  std::shared_ptr<TraceNode> root_;
  pybind11::object tracer_;
  pybind11::object no_amp_;
  TraceNode* node_ = nullptr;
  // Whether the calls are new to the trace: computed at once, and recorded.
  bool is_recording_ = false;
  const int64_t begun_at_ = ticks();
  int64_t recording_since_ = 0;
  bool has_run_ = false;  // whether there is an event of this capture, or an engine has run
  bool is_computing_ = false;
  std::thread::id computing_;  // the thread that is computing the deferred calls
  bool is_dynamic_ = true;
  // All values of the trace; null: computed, and without a reference.
  std::vector<pybind11::object> values_;
  std::vector<bool> is_result_;  // for each value, whether it is the result of a call
  Ranges released_ranges_;       // known ranges of integers in values that were released
  // Memory that deferred calls read. A pin is not counted as a holder: otherwise weights would be
  // treated as exposed.
  std::vector<const phi::Allocation*> read_memory_;
  std::vector<std::unique_ptr<const MemoryPin>> memory_pins_;
  std::unordered_map<PyObject*, int> value_indices_;
  std::vector<PyObject*> new_values_;  // tensors that the current call adds to the trace as values
  // Tensors whose contents depend on shapes only, not on data.
  std::unordered_map<PyObject*, pybind11::object> shape_tensors_;
  // Tensors that were computed immediately in this call of the captured function, such as zeros to
  // be filled.
  std::unordered_map<PyObject*, std::weak_ptr<phi::TensorBase>> eager_results_;
  Capture* outer_ = nullptr;
};

// Suspends the capture of this thread while the object lives.
class NoCapture {
 public:
  NoCapture();
  ~NoCapture();
  NoCapture(const NoCapture&) = delete;
  NoCapture& operator=(const NoCapture&) = delete;

 private:
  Capture* before_;
};

// Resets all captures in a forked process, in which only the forking thread exists.
void reset_captures_after_fork();

// Whether an argument is a lazy tensor of any thread, or one whose computation failed.
bool is_any_lazy(PyObject* args, PyObject* kwargs);

// Flushes other threads if a lazy tensor of theirs is among these arguments or, where these may be
// written, if a deferred operator reads one of them. Returns false if Python's error is set.
bool flush_other_threads(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write);

// The in-place version counters of tensors, joined to a string that shows whether any was written.
std::string tensor_versions(const pybind11::list& tensors);

// bump: records that a flag was set, after which recorded traces are invalid. version: the number
// of such changes so far.
void bump_settings_version();
uint64_t settings_version();

// Sets whether autograd passes saved tensors of this thread to hooks of the user, so that no
// operator may be deferred.
void set_saved_tensor_hooks_active(bool on);

}  // namespace paddle_ngraph
