// Builds a compiled function from a graph string, with the bridge in Python, on a cache miss.
#pragma once

#include <pybind11/pytypes.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/common/blake3.h"
#include "core/common/error.h"
#include "core/engine/ngraph_function.h"
#include "core/ov/optimizer_updates.h"
#include "core/paddle/random.h"

namespace paddle_ngraph {

struct BuiltFunction {
  std::unique_ptr<OvFunction> function;
  // For each parameter of the model, the index of the subgraph input that feeds it; an index of
  // num_inputs + i means that `samples[i]` feeds it.
  std::vector<size_t> parameter_inputs;
  std::vector<RandomSample> samples;
  std::vector<RangeCheck> checks;
  // If sizes are symbolic: for each dimension of each input, in order, then for each element of
  // inputs that are read by value, the index of its symbolic size or SymbolicSignature::kFixed; and
  // the guards on the symbolic sizes.
  std::vector<int> symbolic_dims;
  std::vector<int64_t> guards;
  // Optimizer updates: states that are written in place instead of being results. The results of
  // the model are outputs, then the new values of the other states, then the operands of these
  // updates.
  Updates updates;

  bool is_symbolic() const { return !symbolic_dims.empty(); }
};

// Changes a model of the bridge as a compilation for the CPU does; returns the properties that it
// would be compiled with. Requires the GIL.
std::map<std::string, std::string> prepare_for_cpu(const pybind11::object& model,
                                                   const std::string& precision, int threads);

// Throws NgraphError if the digest in the first line does not match the rest. Takes the GIL.
void verify_graph(const std::string& graph);

// Dependencies of a build other than the graph and its inputs: versions, processor, settings. Empty
// if converters from outside the package are involved, since changes to these cannot be detected.
// Takes the GIL.
std::string build_environment(const std::string& graph, const Settings& settings);

// Records inputs of the graph, by shape and, where they are read by value, by contents, and that a
// function with `parts` chunks of the batch exists for them; later builds choose symbolic sizes
// from this record. Takes the GIL.
void remember_shapes(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                     const std::vector<size_t>& value_inputs, int parts);

// Has all functions of this graph built with static shapes from now on. Takes the GIL.
void disable_dynamic_shapes(const std::string& graph);

// Lets the bridge build the model for these inputs, with the inputs `weights` as constants, and
// compiles it. The function retains the needed memory of `copies`, and reads weights without a copy
// in place. Takes the GIL for the bridge; Python exceptions become NgraphError, a ValueError
// becomes InvalidInput, both with the code and operator of the exception (errors.outcome).
BuiltFunction build_function(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                             const std::vector<size_t>& value_inputs,
                             const std::vector<size_t>& weights,
                             const std::vector<OwnedMemory>& copies, const Settings& settings);

// Runs Paddle's own kernels instead of a function; reads and writes the variables of `io` as the
// program's operators would. Errors of the kernels are thrown as Paddle's own exception; throws
// NgraphError, before anything has run, if the graph lacks the data for a fallback. Takes the GIL.
void run_fallback(const std::string& graph, const NgraphIO& io);

// Runs an operator of a ProgramDesc program, whose description `text` is, by Paddle's
// implementation for ProgramDesc. Errors are thrown as Paddle's own exception; where it calls a
// Python function of the user, as PythonInterrupt, and signals are not deferred. Takes the GIL.
void run_legacy_operator(const std::string& text, const std::vector<phi::DenseTensor*>& inputs,
                         const std::vector<phi::DenseTensor*>& outputs, bool calls_python);

// The random generator before a verified run.
struct GeneratorBefore {
  // Counted before the generator is copied, so that no change in between is missed.
  int64_t other_changes = generator_changes_of_other_threads();
  RandomState state;
};

// Compares a run of a function with Paddle's kernels: `given` holds copies of the inputs and states
// before the run, `found` those of the outputs and states after it, `weights` the digests of the
// weights that the function may have as constants. Reports what differs; no error of the comparison
// is thrown. Takes the GIL.
void check_run(const std::string& graph, std::vector<phi::DenseTensor> given,
               std::vector<phi::DenseTensor> found, const GeneratorBefore& random,
               const std::vector<Digest>& weights);

// Compares a run of a recurrent layer with packed weights, or of its gradient, with Paddle's
// kernels: `given` holds its operands by name, which nothing writes meanwhile, `found` its results.
// As check_run().
using LayerAttribute = std::variant<bool, int64_t, double, std::string>;
void check_layer(const std::map<std::string, LayerAttribute>& attributes,
                 const std::map<std::string, std::vector<phi::DenseTensor>>& given,
                 const std::vector<phi::DenseTensor>& found, const GeneratorBefore& random);

// Hands copies of the inputs and states of a run to the profile that is measured. Takes the GIL.
void profile_run(const std::string& graph, const std::vector<phi::DenseTensor>& given);

// Records that a run could not be compared, and why. Takes the GIL.
void skip_check(const std::string& reason);

// Whether an operator of the subgraph creates an empty tensor from these inputs, as far as shapes
// show.
bool creates_empty_tensor(const std::string& graph, const NgraphIO& io);

// Denylists the operators of the graph for which a function could not be built or run, with this
// error: from the next plan on, these fall back to Paddle.
void deny_graph(const std::string& graph, const NgraphError& error);

// Removes the failure that a build of the graph recorded: the data was its cause, since Paddle
// failed too.
void clear_failure(const std::string& graph);

class CompileJob;

// Whether a run on these inputs that lacks its function should fall back to Paddle during the build
// instead of waiting for the function. `fallback_us`: time of a run by Paddle, in microseconds; 0:
// not measured. Takes the GIL.
bool should_compile_in_background(const std::string& graph,
                                  const std::vector<phi::DenseTensor*>& inputs,
                                  int64_t fallback_us);

// Whether runs of this graph with seldom shapes may fall back to Paddle, without a build of a
// function for these shapes. Takes the GIL.
bool may_skip_compile(const std::string& graph);

// Submits a job to the background compile thread. Returns false if the thread accepts none now.
// Takes the GIL.
bool submit_compile_job(const std::shared_ptr<CompileJob>& job);

// Blocks until every compile job is built or cancelled. Takes the GIL.
void wait_for_compile_jobs();

class AwaitedBuild;

// The end of a run's wait for a function: the build is over; the caller has to call build(); or a
// signal has arrived, and the run falls back.
enum class BuildWait { kOver, kCallerBuilds, kInterrupted };

// Has a thread build, and waits for it. Returns false if the caller has to build itself: in another
// thread than the main one, which alone handles Ctrl-C, or while the process exits. Takes the GIL.
BuildWait wait_for_build(const std::shared_ptr<AwaitedBuild>& build, const std::string& graph);

// Version of the denylist. Entries are valid while the version is unchanged; after a change of a
// converter its operators are tried again.
std::atomic<uint64_t>& denylist_version();

}  // namespace paddle_ngraph
