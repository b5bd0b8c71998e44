// Header: the first line of a graph string (ir/graph.py), which contains all that the engine reads
// of its graph.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"

namespace paddle_ngraph {

struct GraphHeader {
  std::string digest;     // of the other lines of the graph string; checked by verify_graph()
  size_t num_inputs = 0;  // number of inputs of the graph, states included
  size_t num_states = 0;
  size_t num_outputs = 0;
  std::vector<size_t> value_inputs;   // indices of inputs whose contents determine the function
  std::vector<size_t> weights;        // indices of inputs that may become constants of functions
  std::vector<phi::DataType> dtypes;  // declared dtypes of all inputs
  bool has_eager_weights = false;
  bool trains = false;
  int max_threads = 0;      // maximum number of threads of a run; 0: determined by flags
  int concurrent_runs = 1;  // expected number of concurrent runs, each with `max_threads` threads
  std::string device;

  // Number of inputs that a run only reads: all except the states.
  size_t num_read_only() const { return num_inputs - num_states; }
  bool is_on_cpu() const { return device == "CPU"; }
  // Whether the weights become constants of functions: there are weights, and no program of the run
  // writes them.
  bool has_frozen_weights() const { return !weights.empty() && !trains; }
};

// Parses the first line. Throws NgraphError if the string is not a graph of this release.
GraphHeader read_header(const std::string& graph);

}  // namespace paddle_ngraph
