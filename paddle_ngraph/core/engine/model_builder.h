// From a graph string to a compiled function: the only place where the core calls Python, on a
// cache miss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/engine/ngraph_engine.h"

namespace paddle_ngraph {

struct BuiltFunction {
  std::unique_ptr<OvFunction> function;
  std::vector<size_t> parameter_inputs;  // as NgraphFunction takes them
  std::vector<Draw> draws;
  // Where shapes are open: for each dimension of each input, in order, the number of the open size
  // that it is or OpenSignature::kFixed; and the guards on the open sizes.
  std::vector<int> open_dimensions;
  std::vector<int64_t> guards;

  bool has_open_shapes() const { return !open_dimensions.empty(); }
};

// Throws NgraphError when the digest in the first line does not fit the rest. Takes the GIL.
void verify_graph(const std::string& graph);

// What decides what is built of a graph, beside the graph and its inputs: versions, processor,
// settings. Empty where converters from outside the package have a part in it: nobody tells of
// changes to these. Takes the GIL.
std::string build_environment(const std::string& graph, const Settings& settings);

// Remembers that the graph has met inputs of these shapes, for functions with open ones. Takes the
// GIL.
void remember_shapes(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs);

// Gives up functions with open shapes for this graph. Takes the GIL.
void close_shapes(const std::string& graph);

// Lets the bridge describe the graph for these inputs, with `weights` among them as constants, and
// compiles it. Takes the GIL for the former; Python's exceptions come back as NgraphError, a
// ValueError as InvalidInput.
BuiltFunction build_function(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                             const std::vector<size_t>& value_inputs,
                             const std::vector<size_t>& weights, const Settings& settings);

// Paddle's own kernels in the place of a function: reads and writes what `io` names, as the
// program's operators would. Throws what they throw, as Paddle's own exception; NgraphError, and
// nothing was run, where the graph does not tell how. Takes the GIL.
void run_natively(const std::string& graph, const NgraphIO& io);

// Whether Paddle makes an empty tensor of these inputs somewhere in the interval, as far as shapes
// tell.
bool makes_empty(const std::string& graph, const NgraphIO& io);

// Leaves to Paddle, from the next plan on, what a function of the graph could not be built or run
// for.
void refuse(const std::string& graph, const std::string& reason);

// Forgets what the bridge had against the graph: the fault was in the data.
void acquit(const std::string& graph);

// Refusals are good for as long as this number stays; a converter that changed has another chance.
std::atomic<uint64_t>& attempts();

}  // namespace paddle_ngraph
