// Computing the lazy tensors of a trace: by a graph, or by its operators, one by one.
#pragma once

#include <pybind11/pytypes.h>

#include <optional>
#include <vector>

#include "core/engine/events.h"
#include "core/lazy/trace.h"
#include "core/lazy/trace_cache.h"

namespace paddle_ngraph {

class TraceExecution {
 public:
  TraceExecution(TraceCache* cache, const Trace& trace) : cache_(*cache), trace_(trace) {}

  // Computes the requested lazy tensors, by a graph if there is one, else by the operators. If the
  // graph raises, it has had no effects, and the operators are called instead. Returns the reason
  // for an event if the operators were called one by one. Throws Python's exceptions.
  std::optional<Reason> run();

 private:
  pybind11::object make_graph_if_recurred();
  pybind11::object make_graph() const;
  bool has_recurred();
  std::optional<Reason> run_graph(const pybind11::object& graph);
  std::optional<Reason> run_open_graph(const pybind11::object& graph, const pybind11::list& given);
  void materialize_outputs(const pybind11::list& results) const;
  bool have_shapes(const pybind11::list& results) const;
  void close_trace();
  bool call_operators();
  pybind11::object call_operator(const TracedCall& call) const;
  void materialize_results(const Argument& expected, PyObject* computed) const;

  TraceCache& cache_;
  const Trace& trace_;
  // Indices of the values that are computed.
  std::vector<int> outputs_;
};

}  // namespace paddle_ngraph
