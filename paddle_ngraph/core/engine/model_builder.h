// From a graph string to a compiled function: the only place where the core calls Python, on a
// cache miss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/engine/ngraph_function.h"
#include "core/ov/optimizer_updates.h"

namespace paddle_ngraph {

struct BuiltFunction {
  std::unique_ptr<OvFunction> function;
  // The input of the interval that feeds each parameter of the model; numbers after the inputs
  // continue through `samples`.
  std::vector<size_t> parameter_inputs;
  std::vector<RandomSample> samples;
  std::vector<RangeCheck> checks;
  // If sizes are open: for each dimension of each input, in order, then for each number in inputs
  // that are read by value, the number of its open size or SymbolicSignature::kFixed; and the
  // guards on the open sizes.
  std::vector<int> symbolic_dims;
  std::vector<int64_t> guards;
  // What is written where the states are, instead of being results. The results of the model are
  // outputs, then the new values of the other states, then what these steps read.
  Updates updates;

  bool is_symbolic() const { return !symbolic_dims.empty(); }
};

// Throws NgraphError if the digest in the first line does not match the rest. Takes the GIL.
void verify_graph(const std::string& graph);

// What a build depends on besides the graph and its inputs: versions, processor, settings. Empty if
// converters from outside the package are involved: nothing reports changes to these. Takes the
// GIL.
std::string build_environment(const std::string& graph, const Settings& settings);

// Records that the graph has met inputs of these shapes and, where they are read by value,
// contents, and has a function for them with so many parts, for functions with open sizes. Takes
// the GIL.
void remember_shapes(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                     const std::vector<size_t>& value_inputs, int parts);

// Gives up functions with open sizes for this graph. Takes the GIL.
void disable_dynamic_shapes(const std::string& graph);

// Has the bridge build the graph for these inputs, with `weights` among them as constants, and
// compiles the result. The function keeps what it needs of `copies`, and reads weights that are not
// there where they are. Takes the GIL for the former; Python exceptions come back as NgraphError, a
// ValueError as InvalidInput.
BuiltFunction build_function(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                             const std::vector<size_t>& value_inputs,
                             const std::vector<size_t>& weights,
                             const std::vector<OwnedMemory>& copies, const Settings& settings);

// Paddle's own kernels instead of a function: reads and writes what `io` names, as the program's
// operators would. Throws what they throw, as Paddle's own exception; throws NgraphError, without
// having run anything, if the graph does not hold enough for it. Takes the GIL.
void run_fallback(const std::string& graph, const NgraphIO& io);

// Whether Paddle makes an empty tensor from these inputs somewhere in the interval, as far as
// shapes show.
bool creates_empty_tensor(const std::string& graph, const NgraphIO& io);

// From the next plan on, leaves to Paddle the part of the graph for which a function could not be
// built or run.
void deny_graph(const std::string& graph, const std::string& reason);

// Withdraws the bridge's suspicion against the graph: the fault was in the data.
void clear_failure(const std::string& graph);

class CompileJob;

// Whether a run on these inputs that lacks its function should go natively while it is built,
// instead of waiting. `fallback_us`: what a native run took; 0: none was measured. Takes the GIL.
bool should_compile_in_background(const std::string& graph,
                                  const std::vector<phi::DenseTensor*>& inputs,
                                  int64_t fallback_us);

// Whether Paddle may do runs of this graph instead of the engine. Takes the GIL.
bool may_skip_compile(const std::string& graph);

// Hands an order to the thread that builds in the background. False if it takes none now. Takes
// the GIL.
bool submit_compile_job(const std::shared_ptr<CompileJob>& job);

// Returns when no order waits and none is built. Takes the GIL.
void wait_for_compile_jobs();

// Refusals hold for as long as this number stays the same; a converter that has changed gets
// another chance.
std::atomic<uint64_t>& denylist_version();

}  // namespace paddle_ngraph
