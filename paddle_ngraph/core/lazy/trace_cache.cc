#include "core/lazy/trace_cache.h"

#include <algorithm>
#include <utility>

#include "core/common/caches.h"
#include "core/common/content_hash.h"
#include "core/engine/events.h"
#include "core/lazy/call_hash.h"
#include "core/lazy/open_traces.h"

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

// Sets the call of a new child.
static TraceNode* begin_child(TraceNode* child, TracedCall call) {
  // Of the functions of the calls, not of their arguments.
  const size_t number = std::hash<const void*>()(call.function) + call.metas.size();
  child->group_hash = combined_hash(child->parent->group_hash, number);
  child->call = std::move(call);
  return child;
}

TraceNode* TraceNode::add_open_child(TracedCall call) {
  // Before retired ones, with which no call is compared then.
  auto& child = *open_children.insert(open_children.begin(), std::make_unique<TraceNode>(this));
  child->is_open = true;
  return begin_child(child.get(), std::move(call));
}

TraceNode* TraceNode::add_child(TracedCall call) {
  auto& child = *children.emplace_back(std::make_unique<TraceNode>(this));
  child.is_open = is_open;
  begin_child(&child, std::move(call));
  if (children.size() > kMaxUnindexedChildren || !children_by_hash.empty()) {
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
  ++num_additions_;
  if (++num_traces_ == kMaxTraces) clear();
}

void TraceCache::count_graph() {
  ++num_additions_;
  if (++graphs_ == kMaxGraphs) clear();
}

// Drops all traces and graphs, so that traces are recorded anew. Calls in progress retain their
// nodes.
void TraceCache::clear() {
  num_traces_ = graphs_ = 0;
  groups_.clear();
  // Destroyed at the end of the scope, when all members are consistent: destructors may call
  // Python.
  const auto freed = std::exchange(root_, std::make_shared<TraceNode>());
}

// -- open traces ---------------------------------------------------------------------------------

// Puts a child behind the open ones, so that calls are compared with those first.
static void put_behind(TraceNode* child) {
  auto &children = child->parent->children, &others = child->parent->open_children;
  const auto found = std::find_if(children.begin(), children.end(),
                                  [&](const auto& each) { return each.get() == child; });
  if (found == children.end()) return;
  auto& by_hash = child->parent->children_by_hash;
  for (auto each = by_hash.begin(); each != by_hash.end();) {
    each = each->second == child ? by_hash.erase(each) : std::next(each);
  }
  others.push_back(std::move(*found));
  children.erase(found);
}

// Retires the trace that ends at a node: no call follows it any more. The calls before the end are
// retired, too, up to the first from where another trace goes on.
static void retire(TraceNode* node) {
  const auto is_live = [](const auto& child) { return !child->is_retired; };
  for (TraceNode* each = node; each->parent != nullptr; each = each->parent) {
    const auto &children = each->children, &others = each->open_children;
    const bool is_end = each != node && !each->graph_breaks.empty();
    if (is_end || std::any_of(children.begin(), children.end(), is_live) ||
        std::any_of(others.begin(), others.end(), is_live)) {
      break;
    }
    each->is_retired = true;
    put_behind(each);
  }
}

void TraceCache::add_end(const TraceNode& root, TraceNode* node, TraceSample sample) {
  constexpr size_t kMaxCompared = 16;
  if (&root != root_.get()) return;
  node->samples.push_back(std::move(sample));
  TraceGroup& group = groups_[node->group_hash];
  const auto number =
      group.openness == Openness::kNothing ? 0 : std::min(group.ends.size(), kMaxCompared);
  std::vector<TraceNode*> others(group.ends.rbegin(), group.ends.rbegin() + number);
  group.ends.push_back(node);
  for (TraceNode* other : others) {
    if (other->is_retired) continue;
    if (TraceNode* const opened = open_traces(root_.get(), other, node, group.openness)) {
      num_traces_ += opened->call.first_value;
      if (opened != other) group.ends.push_back(opened);
      // A trace that has recurred keeps its graph, which is faster than that of the open trace.
      for (TraceNode* each : {other, node}) {
        if (each != opened && each->graphs.empty()) retire(each);
      }
      return;
    }
  }
}

void TraceCache::close(TraceNode* node) {
  TraceGroup& group = groups_[node->group_hash];
  group.openness = has_open_sizes(*node) ? Openness::kNumbers : Openness::kNothing;
  retire(node);
  // The recorded traces are followed again.
  for (TraceNode* end : group.ends) {
    for (TraceNode* each = end; !end->is_open && each != nullptr; each = each->parent) {
      each->is_retired = false;
    }
  }
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
    for (const auto* some : {&node->open_children, &node->children}) {
      for (auto next = some->rbegin(); next != some->rend(); ++next) {
        pending.emplace_back(next->get(), length + 1);
      }
    }
  }
  return found;
}

}  // namespace paddle_ngraph
