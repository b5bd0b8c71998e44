#include "core/lazy/trace.h"

#include <algorithm>
#include <set>

#include "core/common/prefetch.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/open_traces.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/python_tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

// Fetches what the next calls are compared with: after a graph has run, the calls of its trace are
// in no cache.
static void prefetch_next(const TraceNode& node) {
  const TraceNode* const next = node.last_followed;
  if (next == nullptr) return;
  prefetch(next->call.arguments.data(), next->call.arguments.size() * sizeof(Argument));
  prefetch(next->call.metas.data(), next->call.metas.size() * sizeof(TracedTensorMeta));
  prefetch(next->last_followed, next->last_followed == nullptr ? 0 : sizeof(TraceNode));
}

// -- values --------------------------------------------------------------------------------------

void Trace::follow(TraceNode* node) {
  if (node->parent != node_) numbers_ = numbers_of(*node_, numbers_, *node->parent);
  for (py::object& number : new_numbers_) numbers_.push_back(std::move(number));
  new_numbers_.clear();
  add_new(/*are_results=*/false);
  node_->last_followed = node;
  node_ = node;
  prefetch_next(*node);
}

void Trace::add(PyObject* tensor, bool is_result) {
  indices_.emplace(tensor, num_values());
  is_result_.push_back(is_result);
  shapes_.push_back(tensor_of(tensor).dims());
  tensors_.push_back(py::reinterpret_borrow<py::object>(tensor));
}

int Trace::note_new(PyObject* tensor) {
  new_tensors_.push_back(tensor);
  return num_values() + static_cast<int>(new_tensors_.size()) - 1;
}

void Trace::clear_new() {
  new_tensors_.clear();
  new_numbers_.clear();
  next_shapes.clear();
}

void Trace::add_new(bool are_results) {
  for (PyObject* tensor : std::exchange(new_tensors_, {})) add(tensor, are_results);
}

int Trace::index_of(PyObject* tensor) const {
  const auto found = indices_.find(tensor);
  if (found != indices_.end()) return found->second;
  const auto added = std::find(new_tensors_.begin(), new_tensors_.end(), tensor);
  if (added == new_tensors_.end()) return -1;
  return num_values() + static_cast<int>(added - new_tensors_.begin());
}

PyObject* Trace::tensor_of_value(int value) const {
  return value < num_values() ? tensors_[value].ptr() : new_tensors_[value - num_values()];
}

const TracedCall& Trace::call_of(int value) const {
  const TraceNode* node = node_;
  while (node->call.first_value > value) node = node->parent;
  return node->call;
}

std::vector<int> Trace::requested_values() const {
  std::vector<int> values;
  for (int value = 0; value < num_values(); ++value) {
    PyObject* const tensor = tensors_[value].ptr();
    if (tensor != nullptr && Py_REFCNT(tensor) > 1 && is_lazy(tensor)) values.push_back(value);
  }
  return values;
}

void Trace::release_unused() {
  // Destroyed at the end of the scope: a destructor may call Python, which may call the captured
  // function again.
  std::vector<py::object> unused;
  for (int value = 0; value < num_values(); ++value) {
    py::object& tensor = tensors_[value];
    if (!tensor || Py_REFCNT(tensor.ptr()) > 1) continue;
    indices_.erase(tensor.ptr());
    const phi::DenseTensor* memory = is_result_[value] ? nullptr : plain_tensor(tensor.ptr());
    if (memory != nullptr) released_ranges_.emplace(value, range_of_tensor(*memory));
    unused.push_back(std::move(tensor));
  }
}

std::optional<IntegerRange> Trace::released_range(int value) const {
  const auto found = released_ranges_.find(value);
  return found == released_ranges_.end() ? std::nullopt : found->second;
}

// -- aliases -------------------------------------------------------------------------------------

bool Trace::is_deferred(PyObject* tensor) const {
  if (is_lazy(tensor)) return true;
  if (!is_recording_) return false;
  const auto found = indices_.find(tensor);
  return found != indices_.end() && is_result_[found->second];
}

// Whether a call of an open trace makes a view for some sizes, and a copy for others.
static bool may_make_view(const TraceNode& node) {
  const ShapeRule::Kind kind = node.call.function->rule.shape_rule.kind;
  const bool is_reshaping = kind == ShapeRule::Kind::kReshape || kind == ShapeRule::Kind::kFlatten;
  return node.is_open && is_reshaping && node.call.num_results() == 1 &&
         node.call.arguments[0].kind == Argument::Kind::kValue;
}

bool Trace::is_aliased(int value) const {
  std::set<int> same{value};
  const std::vector<const TraceNode*> calls = nodes_to(*node_);
  const auto join = [&same](int view, int other) {
    if (same.count(view) > 0 || same.count(other) > 0) same.insert({view, other});
  };
  for (size_t before = 0; before != same.size();) {
    before = same.size();
    for (const TraceNode* each : calls) {
      for (const auto& [view, other] : each->call.views) join(view, other);
      if (may_make_view(*each)) join(each->call.first_result, each->call.arguments[0].value);
    }
  }
  return std::any_of(same.begin(), same.end(), [&](int each) {
    if (!is_result_[each]) return true;
    return each != value && tensors_[each] && Py_REFCNT(tensors_[each].ptr()) > 1;
  });
}

bool Trace::shares_autograd_meta(PyObject* tensor) const {
  const auto* const own = tensor_of(tensor).get_autograd_meta();
  return own != nullptr &&
         std::any_of(tensors_.begin(), tensors_.end(), [&](const py::object& each) {
           return each && each.ptr() != tensor && tensor_of(each.ptr()).get_autograd_meta() == own;
         });
}

// -- mutated tensors -----------------------------------------------------------------------------

void Trace::rebind_to_next_value(PyObject* tensor, py::object former) {
  const int before = indices_.at(tensor);
  indices_.erase(tensor);
  if (former) indices_.emplace(former.ptr(), before);
  const auto former_value = std::exchange(tensors_[before], std::move(former));
  add(tensor, true);
}

}  // namespace paddle_ngraph
