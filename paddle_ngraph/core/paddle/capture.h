// Capture of the operators that a function of dynamic mode calls.
//
// Python runs the function in each call, whatever it does. Operators on the list of those that
// may wait are not computed when they are called, but when somebody wants to know: their results
// are tensors without memory, of which shape and dtype are known from an earlier call with the
// same operators on the same kinds of tensors. Whatever else of Paddle is called (everything that
// is no such operator, call_interception.h) is a graph break: first everything that waits is
// computed, as one graph, or operator by operator.
//
// So nothing of the function is assumed, and nothing of it has to be guarded: what is computed are
// the operators that this very call has asked for.
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

#include "core/paddle/exposure.h"
#include "core/paddle/integer_ranges.h"

namespace paddle_ngraph {

struct InterceptedFunction;

// What a value is known by: every other tensor of this kind may stand in its place.
struct TracedTensorMeta {
  phi::DataType dtype;
  phi::DDim shape;
  bool stop_gradient;
  bool is_contiguous;
  bool is_parameter;
  phi::DDim strides;  // which operators share memory depends on them

  bool operator==(const TracedTensorMeta& other) const;
};

// What ends a graph where the function itself ends.
constexpr const char* kEndOfFunction = "the end of the function";

// An argument or result of a call: a value, by its number in the path; a list, tuple or slice; an
// object that is what it is; or a tensor without memory, that nobody reads or computes.
struct Argument {
  enum class Kind { kValue, kSequence, kConstant, kUninitialized };
  Kind kind = Kind::kConstant;
  int value = -1;
  PyTypeObject* type = nullptr;  // of kItems
  std::vector<Argument> items;
  pybind11::object constant;
  bool is_any_of_type = false;  // a constant that equals all others of its type
  // Of kNothing, if it needs no memory for it has no elements.
  std::shared_ptr<const phi::DenseTensorMeta> empty;
  bool stop_gradient = true;
};

// A value in what `make_graph` is given.
struct TracedValue {
  int index;
};

// A call of an operator. The values that it adds to those of the calls before: the tensors that it
// is the first to be given, then its results.
struct TracedCall {
  const InterceptedFunction* function = nullptr;
  bool has_gradient = true;
  std::vector<Argument> arguments;  // of a method, the object first; keywords last
  std::vector<pybind11::str> keywords;
  Argument result;
  int first_value = 0;
  int first_result = 0;
  std::vector<TracedTensorMeta> metas;
  std::map<int, int> views;  // results that have the memory of another value, by their numbers
};

// A call after those of its parents, and what came of the path that ends here.
struct TraceNode {
  explicit TraceNode(TraceNode* parent = nullptr) : parent(parent) {}

  TraceNode* parent;
  TracedCall call;
  size_t group_hash = 0;  // equal for paths that differ in sizes only
  std::vector<std::unique_ptr<TraceNode>> children;
  std::map<std::string, std::string> graph_breaks;      // what has ended it, and where
  std::map<std::vector<int>, pybind11::object> graphs;  // by the values that were wanted
  std::set<std::vector<int>> outputs;                   // without a graph so far
};

// What paths have in common that differ in sizes only, and what computes all of them.
struct TracePattern {
  std::vector<TracedCall> calls;
  std::vector<phi::DDim> shapes;                        // of all values; -1: any size
  std::map<std::vector<int>, pybind11::object> graphs;  // by the values that were wanted
};

// All paths of a function. Guarded by Python's lock.
class TraceCache {
 public:
  // `make_graph` is given calls, kinds of values, the numbers of those that are wanted, and, where
  // sizes in the kinds are open (-1), some examples: the shapes of all values. It returns what
  // computes these from the given ones, or None if operators are to be called.
  // `trains`: whether calls that may get a gradient are captured, too.
  TraceCache(pybind11::object make_graph, bool trains);

  bool trains() const { return trains_; }

  const std::shared_ptr<TraceNode>& root();
  const pybind11::object& make_graph() const { return make_graph_; }
  // Another path, another graph. Beyond a bound everything is forgotten.
  void count_trace();
  void count_graph();

  // A path of this tree was found to end.
  void add_end(const TraceNode& root, TraceNode& node);
  // The pattern that serves a path, which is made if there are enough paths like it; else null.
  std::shared_ptr<TracePattern> find_or_make_pattern(const TraceNode& node);
  // The shapes of values of some paths like it.
  std::vector<std::vector<phi::DDim>> examples_of(const TraceNode& node) const;
  // What the paths of this family have in common could not be computed.
  void specialize_group(const TraceNode& node);

  static constexpr size_t kMaxTraces = 60000;
  static constexpr size_t kMaxGraphs = 256;
  // This many paths of a pattern get graphs of their own, whose sizes are known.
  static constexpr size_t kMaxStaticGraphs = 2;

  // For each end of a graph: how many calls, what ended it, what computes it.
  pybind11::list ends() const;

 private:
  std::shared_ptr<TraceNode> root_;
  pybind11::object make_graph_;
  bool trains_;
  void clear_traces();
  void clear();

  // Paths that may differ in sizes only.
  struct TraceGroup {
    std::vector<TraceNode*> ends;
    std::vector<std::shared_ptr<TracePattern>> patterns;
    bool is_specialized = false;  // each path has a graph of its own
  };
  std::unordered_map<size_t, TraceGroup> groups_;

  uint64_t settings_version_ = 0;
  size_t num_traces_ = 0;
  size_t graphs_ = 0;
};

// While it lives, this thread captures. It has to be ended before.
class Capture {
 public:
  Capture(std::shared_ptr<TraceCache> trace_cache, pybind11::object tracer);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // That of this thread, or null.
  static Capture* current();

  // A call of an operator that may wait. Python's error is set if null is returned.
  PyObject* call(const InterceptedFunction& function, PyObject* self, PyObject* args,
                 PyObject* kwargs);

  // Whether there are tensors among the arguments, and all depend on shapes only.
  bool has_only_shape_tensors(const std::array<PyObject*, 3>& arguments) const;

  // Whether all tensors among the arguments are computed already, and may be shown.
  bool has_only_materialized_tensors(const std::array<PyObject*, 3>& arguments,
                                     bool exposes_memory) const;

  // Whether they are sizes, and nothing that waits reads their memory.
  bool may_expose_data(const std::array<PyObject*, 3>& arguments) const;

  // A call at once, after what waits: the path ends here.
  PyObject* call_with_graph_break(const InterceptedFunction& function, PyObject* self,
                                  PyObject* args, PyObject* kwargs);

  // A call that changes its tensor, see Mutation.
  PyObject* call_mutating(const InterceptedFunction& function, PyObject* self, PyObject* args,
                          PyObject* kwargs);

  // What a call has returned that was computed at once.
  void note_eager_result(PyObject* result);

  // A call whose results depend on shapes only: it is no part of a path, which is one for shapes.
  PyObject* call_shape_query(const InterceptedFunction& function, PyObject* self, PyObject* args,
                             PyObject* kwargs);

  // Whether this thread computes, and does not make a program.
  void set_dynamic(bool on) { is_dynamic_ = on; }

  // Computes everything that waits. Returns false if Python's error is set.
  bool flush(const std::string& reason);

  // The same for another thread: what this thread calls next is still part of the path.
  bool flush_for_other_thread();

  // The process is a copy, without the thread that was computing.
  void reset_lost_thread();

 private:
  // What a call is given, with copies of tensors that others may write while it waits, and with
  // Python's numbers and tensors for what of NumPy's stands for them.
  std::vector<PyObject*> snapshot_arguments(const InterceptedFunction& function,
                                            const std::vector<PyObject*>& given,
                                            std::vector<pybind11::object>* copies) const;
  PyObject* snapshot_argument(PyObject* argument, const InterceptedFunction& function,
                              bool is_number, std::vector<pybind11::object>* copies,
                              int depth = 0) const;
  std::optional<pybind11::list> known_int_list(PyObject* argument) const;
  bool append_known_integers(PyObject* tensor, pybind11::list* numbers) const;
  // Whether a tensor waits, or will where the same is called again.
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
  bool compute();
  void compute_outputs();
  bool has_recurred(const std::vector<int>& outputs);
  bool compute_graph(const pybind11::object& graph, const std::vector<int>& outputs);
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
  bool is_recording_ = false;  // what is called is computed at once
  bool is_computing_ = false;
  std::thread::id computing_;  // which thread does
  bool is_dynamic_ = true;
  std::vector<pybind11::object> values_;  // null: computed, and nobody has it
  std::vector<bool> is_result_;           // whether a call has made the value
  Ranges released_ranges_;                // of values that were given
  // Memory that calls which wait read. To hold it does not count: weights would be open to others.
  std::vector<const phi::Allocation*> read_memory_;
  std::vector<std::unique_ptr<const MemoryPin>> memory_pins_;
  std::unordered_map<PyObject*, int> value_indices_;
  std::vector<PyObject*> new_values_;  // of the call that is looked at
  std::unordered_map<PyObject*, pybind11::object>
      shape_tensors_;  // tensors that depend on shapes only
  // Tensors that were computed at once in this call of the function, such as zeros to be filled.
  std::unordered_map<PyObject*, std::weak_ptr<phi::TensorBase>> eager_results_;
  Capture* outer_ = nullptr;
};

// While it lives, this thread does not capture.
class NoCapture {
 public:
  NoCapture();
  ~NoCapture();
  NoCapture(const NoCapture&) = delete;
  NoCapture& operator=(const NoCapture&) = delete;

 private:
  Capture* before_;
};

// In a forked process: no other thread goes on computing what waits.
void reset_captures_after_fork();

// Whether one of these arguments waits, in whichever thread, or never was computed.
bool is_any_lazy(PyObject* args, PyObject* kwargs);

// Computes what waits in other threads if it is among these arguments or, where these may be
// written, reads one of them. Returns false if Python's error is set.
bool flush_other_threads(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write);

// How often tensors were written by operators of dynamic mode, to be compared.
std::string tensor_versions(const pybind11::list& tensors);

// A flag is set: what was noted before is noted anew. How often that has happened.
void bump_settings_version();
uint64_t settings_version();

// Whether this thread's autograd shows functions of the user the tensors that it keeps.
void set_saved_tensor_hooks_active(bool on);

}  // namespace paddle_ngraph
