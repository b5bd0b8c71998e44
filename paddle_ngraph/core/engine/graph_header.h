// Header: the first line of a graph string (ir/graph.py), which contains all that the engine reads
// of its graph.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "paddle/phi/common/data_type.h"

namespace paddle_ngraph {

struct GraphHeader {
  size_t num_inputs = 0;  // number of inputs, states included
  size_t num_states = 0;
  size_t num_outputs = 0;
  std::vector<size_t> value_inputs;  // indices of inputs whose contents shape the function
  std::vector<size_t> weights;       // indices of inputs that may become constants of functions
  // dtypes of all inputs of the subgraph, as declared by the program
  std::vector<phi::DataType> dtypes;
  bool has_eager_weights = false;
  bool trains = false;
  int max_threads = 0;      // threads of a run; 0: as set by the flags
  int concurrent_runs = 1;  // number of concurrent runs, with `max_threads` threads each
  std::string device;

  // Number of inputs without the states.
  size_t num_read_only() const { return num_inputs - num_states; }
  bool is_on_cpu() const { return device == "CPU"; }
  // Whether the weights become constants of functions: there are weights, and no program of the run
  // writes them.
  bool has_frozen_weights() const { return !weights.empty() && !trains; }
};

// Parses the first line. Throws NgraphError if the string is not a graph of this release.
GraphHeader read_header(const std::string& graph);

}  // namespace paddle_ngraph
