// Capture of the operators that a function of dynamic mode calls: lazy tensors with a trace cache.
//
// Python runs the function in each call. Deferrable operators are not computed when they are
// called, but when a caller needs their values: their results are lazy tensors, whose shape and
// dtype are known from an earlier call with the same operators on tensors with the same metadata.
// Any other call into Paddle (call_interception.h) is a graph break: all deferred operators are
// computed first, as one graph, or operator by operator.
//
// So nothing of the function is assumed, and no guards are needed: the computed operators are
// exactly those that this call has requested.
//
// - capture: what an intercepted call becomes: deferred, recorded, computed, a graph break
// - argument_snapshot, varying_numbers: the arguments of a call as a trace takes them; numbers that
//   may differ from call to call
// - trace, trace_cache: the calls and values of this call of the function; those of all calls
// - call_matching, call_hash, call_recording: the known call that equals one; a new one, described
// - open_traces, result_shapes, inferred_shapes: one trace for calls that differ in sizes and
//   numbers; the shapes of its results
// - growing_lists: lists of tensors that have another length in each call
// - trace_execution: computing the lazy tensors, by a graph or by the operators
// - value_ranges: ranges of lazy integers, for lookups
// - deferred_hooks: hooks on the gradients of lazy tensors
// - lazy_tensors: the registries of lazy tensors, and of the memory that deferred calls read
#pragma once

#include <pybind11/pytypes.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "paddle/phi/core/allocator.h"
#include "paddle/phi/core/tensor_base.h"

#include "core/engine/events.h"
#include "core/lazy/deferred_hooks.h"
#include "core/lazy/trace.h"
#include "core/lazy/trace_cache.h"
#include "core/paddle/exposure.h"

namespace paddle_ngraph {

struct InterceptedFunction;
struct ListPart;

// The reason that is recorded where a captured function ends without a graph break.
constexpr const char* kEndOfFunction = "the end of the function";

// Captures the operators that this thread calls while the object lives. Call flush() before its
// end.
class Capture {
 public:
  explicit Capture(std::shared_ptr<TraceCache> trace_cache);
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

  // Handles a call that registers a hook on the gradient of a tensor, or removes one.
  PyObject* call_hooking(const InterceptedFunction& function, PyObject* self, PyObject* args,
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
  bool may_capture(bool has_gradient) const;
  bool may_mutate_eagerly(const InterceptedFunction& function, PyObject* changed,
                          const std::array<PyObject*, 3>& arguments) const;
  bool may_mutate(const InterceptedFunction& function, PyObject* tensor) const;
  bool owns_memory(PyObject* tensor) const;
  bool aliases_a_copy(const TracedCall& call, const std::vector<pybind11::object>& copies) const;

  PyObject* defer(const TracedCall& call);
  pybind11::object make_lazy_result(const Argument& result, const TracedCall& call);
  void defer_mutation(const TracedCall& call, PyObject* tensor);
  PyObject* replay_call(const TracedCall& call, const InterceptedFunction& function, PyObject* self,
                        PyObject* args, PyObject* kwargs);
  PyObject* join_parts(const InterceptedFunction& function, const std::vector<ListPart>& parts,
                       PyObject* self, PyObject* args, PyObject* kwargs);
  PyObject* record_call(const InterceptedFunction& function, bool has_gradient,
                        const PyObjects& given, PyObject* self, PyObject* args, PyObject* kwargs);
  PyObject* record_mutation(const InterceptedFunction& function, TraceNode* known,
                            const PyObjects& given, PyObject* self, PyObject* args,
                            PyObject* kwargs);

  void begin();
  void follow(TraceNode* node);
  // `is_end`: whether the trace ends here. Otherwise operators are recorded next, and the event is
  // that of flush().
  bool compute(bool is_end = false);
  bool wait_for_compute() const;
  void record(Reason reason, int64_t start);
  void track_read(PyObject* tensor);
  std::vector<std::unique_ptr<const MemoryPin>> stop_tracking_reads();

  std::shared_ptr<TraceCache> trace_cache_;
  Trace trace_;
  const int64_t begun_at_ = ticks();
  int64_t recording_since_ = 0;
  bool has_run_ = false;  // whether there is an event of this capture, or an engine has run
  bool is_computing_ = false;
  std::thread::id computing_;  // the thread that is computing the deferred calls
  bool is_dynamic_ = true;
  DeferredHooks hooks_;
  // Memory that deferred calls read. A pin is not counted as a holder: otherwise weights would be
  // treated as exposed.
  std::vector<const phi::Allocation*> read_memory_;
  std::vector<std::unique_ptr<const MemoryPin>> memory_pins_;
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

// The in-place version counters of tensors, joined to a string that shows whether any was written.
std::string tensor_versions(const pybind11::list& tensors);

// Sets whether autograd passes saved tensors of this thread to hooks of the user, so that no
// operator may be deferred.
void set_saved_tensor_hooks_active(bool on);

}  // namespace paddle_ngraph
