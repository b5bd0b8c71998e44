// The trace of one call of a captured function: the calls so far, and the tensors of its values.
#pragma once

#include <pybind11/pytypes.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/lazy/trace_cache.h"
#include "core/paddle/integer_ranges.h"

namespace paddle_ngraph {

// A value is an argument or a result of the calls so far, and is denoted by its index. A tensor
// denotes one value; the value of a tensor that is mutated is another one from then on.
class Trace {
 public:
  explicit Trace(std::shared_ptr<TraceNode> root) : root_(std::move(root)), node_(root_.get()) {}

  const TraceNode& root() const { return *root_; }
  // The last call.
  TraceNode& node() const { return *node_; }
  bool is_empty() const { return node_ == root_.get(); }

  // Whether calls are computed at once, and recorded, since they are new; otherwise deferred.
  bool is_recording() const { return is_recording_; }
  void start_recording() { is_recording_ = true; }

  // Appends a known call, whose arguments include the new tensors and numbers; its results are
  // added next.
  void follow(TraceNode* node);
  // Appends a call that was recorded just now, and whose values were added.
  void record(TracedCall call) { node_ = node_->add_child(std::move(call)); }
  void add_result(PyObject* tensor) { add(tensor, true); }

  // The tensors of all values of the calls so far; null: computed, and without a reference.
  const std::vector<pybind11::object>& tensors() const { return tensors_; }
  int num_values() const { return static_cast<int>(tensors_.size()); }
  // The index of a tensor's value, also of one of `new_tensors`; -1: none.
  int index_of(PyObject* tensor) const;
  bool has_value(PyObject* tensor) const { return indices_.count(tensor) > 0; }
  // Whether a value is the result of a call, not an argument from outside.
  bool is_result(int value) const { return is_result_[value]; }
  // Notes the line of the user's code that makes the last call.
  void note_line(pybind11::object line) {
    lines_.emplace_back(node_->call.first_result, std::move(line));
  }
  // The lines that were noted, by the first results of their calls.
  const std::vector<std::pair<int, pybind11::object>>& lines() const { return lines_; }

  // The call that computed a value, or was the first to read it.
  const TracedCall& call_of(int value) const;
  const TracedTensorMeta& meta_of(int value) const { return call_of(value).meta_of(value); }
  // The shapes of all values, and the numbers of the calls that differ from call to call.
  const std::vector<phi::DDim>& shapes() const { return shapes_; }
  const std::vector<pybind11::object>& numbers() const { return numbers_; }

  // Whether a tensor is lazy, or will be when the recorded call is replayed.
  bool is_deferred(PyObject* tensor) const;
  // Whether there may be another tensor outside of the trace that shares memory with a value.
  bool is_aliased(int value) const;
  // Whether a tensor shares its autograd metadata with another value, as Paddle does for x and
  // x[:].
  bool shares_autograd_meta(PyObject* tensor) const;

  // Values of lazy tensors to which something else than the trace refers: they have to be computed.
  std::vector<int> requested_values() const;
  // Releases computed values to which only this trace refers, as plain Paddle would have freed
  // them.
  void release_unused();
  // The range of the integers in an argument from outside that was released; nothing if unknown.
  std::optional<IntegerRange> released_range(int value) const;

  // Makes a tensor denote the next value of the trace. `former`: the tensor that denotes its
  // former value from now on; null if none has to.
  void rebind_to_next_value(PyObject* tensor, pybind11::object former);

  // New tensors are those that the call in progress will add to the values: arguments that no
  // earlier call has used, or results.
  const PyObjects& new_tensors() const { return new_tensors_; }
  // Notes a new tensor; returns the index that its value will have.
  int note_new(PyObject* tensor);
  void note_new_number(pybind11::object number) { new_numbers_.push_back(std::move(number)); }
  void clear_new();
  void add_new(bool are_results);
  // The tensor of a value, also of a new one.
  PyObject* tensor_of_value(int value) const;

  // The shapes of the results of the known call that is followed next; empty unless it has open
  // sizes.
  ResultShapes next_shapes;

 private:
  void add(PyObject* tensor, bool is_result);

  std::shared_ptr<TraceNode> root_;
  TraceNode* node_;
  bool is_recording_ = false;
  std::vector<pybind11::object> tensors_;
  std::vector<bool> is_result_;
  std::unordered_map<PyObject*, int> indices_;
  std::unordered_map<int, std::optional<IntegerRange>> released_ranges_;
  std::vector<phi::DDim> shapes_;
  std::vector<pybind11::object> numbers_;
  PyObjects new_tensors_;
  std::vector<pybind11::object> new_numbers_;
  std::vector<std::pair<int, pybind11::object>> lines_;
};

}  // namespace paddle_ngraph
