// The traces of a captured function: a tree of calls, in which traces share the calls that they
// begin with. Traces that differ in sizes and numbers only are opened (open_traces.h).
#pragma once

#include <pybind11/pytypes.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "paddle/phi/core/ddim.h"

#include "core/lazy/traced_call.h"

namespace paddle_ngraph {

// The sizes and numbers of one call of a trace.
struct TraceSample {
  std::vector<phi::DDim> shapes;  // of all values
  std::vector<pybind11::object> numbers;
};

// A node in the tree of traces: a call that follows those of its ancestors, and the graphs of the
// trace that ends with this call.
struct TraceNode {
  explicit TraceNode(TraceNode* parent = nullptr) : parent(parent) {}

  TraceNode* parent;
  // The child that was followed last.
  TraceNode* last_followed = nullptr;
  TracedCall call;
  // Hash of the calls up to this one; equal for traces that differ in sizes only.
  size_t group_hash = 0;
  std::vector<std::unique_ptr<TraceNode>> children;
  // The children by the hash of their calls (call_hash.h); empty while they are few.
  std::unordered_multimap<size_t, TraceNode*> children_by_hash;
  // Reason -> reason and source line of a graph break after this call.
  std::map<std::string, std::string> graph_breaks;
  // Indices of requested values -> graph that computes them.
  std::map<std::vector<int>, pybind11::object> graphs;
  // Sets of requested values that were needed, but have no graph yet.
  std::set<std::vector<int>> outputs;

  // Whether sizes or numbers of the calls up to this one are open, so that shapes are computed.
  bool is_open = false;
  // Whether no call follows this node any more, but an open trace, or others if that has no graph.
  bool is_retired = false;
  // The children whose own sizes or numbers are open.
  std::vector<std::unique_ptr<TraceNode>> open_children;
  // The nodes of open traces that this trace is one of, which have the same values.
  std::vector<TraceNode*> opened;
  // The operators that have joined lists of several lengths after this node (growing_lists.h).
  std::set<const InterceptedFunction*> growing_lists;
  // Some calls of the trace that ends here.
  std::vector<TraceSample> samples;

  // Adds a call that follows this one; returns its node.
  TraceNode* add_child(TracedCall call);
  TraceNode* add_open_child(TracedCall call);

  // Comparing a call with this many others costs less than its hash.
  static constexpr size_t kMaxUnindexedChildren = 8;
};

// The nodes from the first call to `node`.
std::vector<const TraceNode*> nodes_to(const TraceNode& node);

// The parts of calls that may be open in an open trace.
enum class Openness { kNothing, kNumbers, kSizesAndNumbers };

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

  // The number of calls, graphs and sets of results that were new so far. It stays the same in a
  // call of the function that has met nothing new.
  uint64_t num_additions() const { return num_additions_; }
  void count_result_set() { ++num_additions_; }

  // Notes that a trace ends at its last node. If an earlier trace differs in sizes and numbers
  // only, adds the open trace of both. Ignores a trace of a tree that was dropped meanwhile.
  void add_end(const TraceNode& root, TraceNode* node, TraceSample sample);
  // Has the traces that the open trace with the end `node` consists of be open in less from now on,
  // because the graph of the open trace cannot be computed: first in numbers only, then in nothing.
  void close(TraceNode* node);

  static constexpr size_t kMaxTraces = 60000;
  static constexpr size_t kMaxGraphs = 256;

  // Lists the nodes with graphs or graph breaks, each as (number of calls, graph breaks, graphs);
  // for tests and reports.
  pybind11::list ends() const;

 private:
  std::shared_ptr<TraceNode> root_;
  pybind11::object make_graph_;
  bool trains_;
  const uint64_t id_;
  void clear();

  // The ends of traces with one group hash: they may be equal except for sizes and numbers.
  struct TraceGroup {
    std::vector<TraceNode*> ends;
    Openness openness = Openness::kSizesAndNumbers;
  };
  std::unordered_map<size_t, TraceGroup> groups_;

  uint64_t settings_version_ = 0;
  size_t num_traces_ = 0;
  size_t graphs_ = 0;
  uint64_t num_additions_ = 0;
};

// bump: records that a flag was set, after which recorded traces are invalid. version: the number
// of such changes so far.
void bump_settings_version();
uint64_t settings_version();

}  // namespace paddle_ngraph
