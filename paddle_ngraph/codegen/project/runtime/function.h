// One interval of the program, compiled for the shapes that it is given.
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

namespace native {

using Stream = std::mt19937_64;

// How functions are compiled.
struct Threads {
  int per_run = 0;  // 0: every core the process may use; 1: the thread that calls
  int streams = 1;  // how many runs compute at a time, where a run has several threads
};

// An interval for some of the shapes it may be given: a model in a file, which is compiled when it
// is first needed. Safe to run from several threads.
class Variant {
 public:
  // `description` is that of the manifest. Throws Error where it makes no sense.
  Variant(const std::string& folder, const Json& description, Threads threads);

  bool fits(const std::vector<const Tensor*>& inputs) const;

  bool draws() const { return !draws_.empty(); }

  // Throws Error, which names one of these, where int64 numbers that it reads need more than 32
  // bits.
  void require_32_bits(const std::vector<const Tensor*>& inputs,
                       const std::vector<std::string>& names) const;

  // Takes numbers from the stream if the interval draws. The results: outputs, then new values of
  // the states, which are the last inputs. Those that steps of optimizers write are in the memory
  // of the old values, unless somebody else has that, too.
  Tensors run(const std::vector<const Tensor*>& inputs, Stream* stream);

  // Memory of an output, or then of the new value of a state, that the next run may write, once
  // nobody else has it.
  void give(size_t number, Tensor tensor);

 private:
  paddle_ngraph::OvFunction& function();
  Tensors draw(size_t num_inputs, Stream* stream) const;
  Tensors run_closed(const std::vector<const Tensor*>& given);
  Tensors run_open(const std::vector<const Tensor*>& given);
  // Takes the steps of optimizers. `results` are those of the function; they become those of run.
  void update(const std::vector<const Tensor*>& inputs, Tensors* results);
  // How many results of the function are outputs or new values of states.
  size_t num_results() const;
  void keep(size_t number, Tensor tensor);
  Tensor take(size_t number, const paddle_ngraph::ResultType& type);

  std::string model_, constants_;  // files
  std::vector<std::vector<int64_t>>
      shapes_;                   // of the inputs: a size, or -1 - number of an open one
  std::vector<int64_t> guards_;  // on the open sizes
  size_t num_open_ = 0;
  std::vector<size_t> parameters_;  // the input, or then the draw, of each
  std::vector<paddle_ngraph::Draw> draws_;
  paddle_ngraph::Updates updates_;
  size_t num_outputs_ = 0;
  std::vector<size_t> places_;  // the results that are new values of states
  paddle_ngraph::Settings settings_;
  std::mutex mutex_;
  std::unique_ptr<paddle_ngraph::OvFunction> function_;
  std::unique_ptr<paddle_ngraph::Updater> updater_;
  Tensors kept_;  // for results of the function
};

class Function {
 public:
  Function(const std::string& folder, const Json& description, Threads threads);

  // The variant for these inputs, states included. Throws Error if there is none.
  Variant& variant(const std::vector<const Tensor*>& inputs);

  // A run of a variant. Throws Error where whole numbers need more than 32 bits.
  Tensors run(Variant* variant, const std::vector<const Tensor*>& inputs, Stream* stream) const;

  bool draws() const { return variants_.front().draws(); }

 private:
  std::string name_;
  std::vector<std::string> inputs_;    // what main.cc calls them
  std::vector<std::string> too_wide_;  // what operators say whose results do not fit
  std::deque<Variant> variants_;
};

}  // namespace native
