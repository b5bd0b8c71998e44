#include "core/lazy/trace_cache.h"

#include <algorithm>
#include <utility>

#include "core/common/caches.h"
#include "core/engine/events.h"
#include "core/lazy/call_hash.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

const CacheDeclaration traces_declaration(
    "traces", "traces of a dynamic layer's calls, and their graphs",
    "the intercepted calls in order, with attributes and metadata of tensors",
    "60,000 traces and 256 graphs for each layer; all are dropped at the bound",
    "a change of settings, or the end of the layer",
    "a tree: traces share the calls that they begin with");

// Number of changes of settings, such as flags, on which recorded operators depend; guarded by the
// GIL.
uint64_t current_settings_version = 0;

}  // namespace

void bump_settings_version() { ++current_settings_version; }

uint64_t settings_version() { return current_settings_version; }

// -- the tree ------------------------------------------------------------------------------------

TraceNode* TraceNode::add_child(TracedCall call) {
  auto& child = *children.emplace_back(std::make_unique<TraceNode>(this));
  // Of the functions of the calls, not of their arguments.
  const size_t number = std::hash<const void*>()(call.function) + call.metas.size();
  child.group_hash =
      group_hash ^ (number + 0x9e3779b97f4a7c15 + (group_hash << 6) + (group_hash >> 2));
  child.call = std::move(call);
  if (children.size() > kMaxUnindexedChildren) {
    const auto first = children_by_hash.empty() ? children.begin() : children.end() - 1;
    for (auto each = first; each != children.end(); ++each) {
      children_by_hash.emplace(hash_of((*each)->call), each->get());
    }
  }
  return &child;
}

std::vector<const TraceNode*> nodes_to(const TraceNode& node) {
  std::vector<const TraceNode*> found;
  for (const TraceNode* each = &node; each->parent != nullptr; each = each->parent) {
    found.push_back(each);
  }
  std::reverse(found.begin(), found.end());
  return found;
}

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

// -- groups --------------------------------------------------------------------------------------

namespace {

std::vector<const TracedCall*> calls_of(const TraceNode& node) {
  std::vector<const TracedCall*> calls;
  for (const TraceNode* each : nodes_to(node)) calls.push_back(&each->call);
  return calls;
}

std::vector<phi::DDim> shapes_of(const TraceNode& node) {
  std::vector<phi::DDim> shapes;
  for (const TracedCall* call : calls_of(node)) {
    for (const TracedTensorMeta& meta : call->metas) shapes.push_back(meta.shape);
  }
  return shapes;
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

}  // namespace paddle_ngraph
