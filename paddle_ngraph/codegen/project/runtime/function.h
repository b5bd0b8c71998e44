// A compiled subgraph of the program, with variants for different shapes of its inputs.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "core/common/random_numbers.h"
#include "core/ov/optimizer_updates.h"
#include "core/ov/ov_function.h"
#include "runtime/json.h"
#include "runtime/tensor.h"

namespace ov {
class Model;
}

namespace native {

using Stream = std::mt19937_64;

// Numbers of threads for compiled functions.
struct Threads {
  // Threads of a run; 0: all cores available to the process; 1: the calling thread.
  int per_run = 0;
  int streams = 1;  // number of concurrent runs, if each run has several threads
};

// A function of a subgraph, for some input shapes: a model in a file, which is compiled on first
// use. Running is thread-safe.
class Variant {
 public:
  // Creates a variant from its entry in the manifest. Throws Error if the entry is invalid.
  Variant(const std::string& folder, const Json& description, Threads threads);

  bool fits(const std::vector<const Tensor*>& inputs) const;

  bool is_stochastic() const { return !random_samples_.empty(); }

  // The number of inputs that are states: the last ones.
  size_t num_states() const { return state_results_.size(); }

  // Throws Error, with one of `names`, if an int64 input has an element that overflows int32.
  void require_int32(const std::vector<const Tensor*>& inputs,
                     const std::vector<std::string>& names) const;

  // Advances the random stream if the subgraph is stochastic. Returns outputs, then new values of
  // the states, which are the last inputs. States written by optimizer updates are in the memory of
  // the old values, unless another holder shares that memory.
  Tensors run(const std::vector<const Tensor*>& inputs, Stream* stream);

  // Passes memory of an output, or of the new value of a state, for reuse by the next run, once
  // there is no other holder.
  void recycle(size_t number, Tensor tensor);

 private:
  paddle_ngraph::OvFunction& function();
  void parse_updates(const Json& description);
  // Throws Error unless the model takes and returns the tensors of the description.
  void check(const ov::Model& model);
  void require_types(const std::vector<const Tensor*>& given) const;
  Tensors sample(size_t num_inputs, Stream* stream) const;
  Tensors run_static(const std::vector<const Tensor*>& given);
  Tensors run_dynamic(const std::vector<const Tensor*>& given);
  // Applies the optimizer updates. Changes `results` from those of the function to those of run().
  void update(const std::vector<const Tensor*>& inputs, Tensors* results);
  // The number of results of the function that are outputs or new values of states.
  size_t num_results() const;
  void retain(size_t number, Tensor tensor);
  Tensor take(size_t number, const paddle_ngraph::ResultType& type);

  std::string model_, constants_;  // paths of the files with the model, and with its constants
  // Shapes of the inputs. Each dimension is a size, or -1 - the index of a symbol.
  std::vector<std::vector<int64_t>> shapes_;
  // Guards: conditions on the symbols under which the variant is valid.
  std::vector<int64_t> guards_;
  size_t num_symbols_ = 0;
  // For each parameter of the model the index of its input, or of its random tensor, which are
  // counted after the inputs.
  std::vector<size_t> parameters_;
  std::vector<ElementType> parameter_types_;  // those of the model, once it was read
  std::vector<paddle_ngraph::RandomSample> random_samples_;
  paddle_ngraph::Updates updates_;
  size_t num_outputs_ = 0;
  // For each state, the index of the result that is its new value.
  std::vector<size_t> state_results_;
  paddle_ngraph::Settings settings_;
  std::mutex mutex_;
  std::unique_ptr<paddle_ngraph::OvFunction> function_;
  std::unique_ptr<paddle_ngraph::Updater> updater_;
  Tensors reusable_;  // memory of former results, which later results reuse
};

class Function {
 public:
  Function(const std::string& folder, const Json& description, Threads threads);

  // The first variant that is valid for these inputs, states included. Throws Error if there is
  // none.
  Variant& variant(const std::vector<const Tensor*>& inputs);

  // Runs a variant of the function. Throws Error if an integer input overflows int32.
  Tensors run(Variant* variant, const std::vector<const Tensor*>& inputs, Stream* stream) const;

  bool is_stochastic() const;

 private:
  std::string name_;
  std::vector<std::string> inputs_;  // names of the inputs, for error messages
  std::deque<Variant> variants_;
};

}  // namespace native
