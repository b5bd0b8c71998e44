// Executor of program steps: each starts as soon as its inputs are computed, in parallel with
// others where the cores of their devices allow it. plan/data_dependency_engine.py splits programs
// into steps.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

class DataDependencyEngine {
 public:
  using Cores = std::vector<int>;

  struct Step {
    // Computes the step; called by any thread, without the GIL. Returns the variables that the step
    // writes.
    std::function<std::vector<phi::DenseTensor>()> compute;
    std::vector<size_t> after;  // indices of the predecessors, all of them earlier in the list
    // Groups of cores on which the step may run: it occupies all cores of a free group, or waits
    // for one.
    std::vector<Cores> groups;
    std::vector<size_t> reads, writes;  // indices of variables; each once
  };

  // variables: the intermediate results of steps; must outlive the engine. Throws NgraphError if a
  // step depends on one that is not before it, or has an index that is out of range.
  DataDependencyEngine(std::vector<Step> steps, std::vector<phi::DenseTensor*> variables,
                       const std::vector<size_t>& fetches);

  // Runs all steps with the given number of threads; returns the fetched tensors. A variable is
  // cleared when its last reader has ended. If a step fails, no other is started, and the error of
  // the first failed step, in the order of steps, is thrown when the running ones have ended; all
  // variables are cleared then. One run at a time.
  std::vector<phi::DenseTensor> run(size_t threads);

  // Time of each step in the last run, in milliseconds: from when its inputs and a thread were
  // available (a thread that had begun the run or ended another step) to its end. So the time that
  // a thread takes to wake up is included.
  const std::vector<double>& last_ms() const { return last_ms_; }

 private:
  class Run;

  std::vector<Step> steps_;
  std::vector<phi::DenseTensor*> variables_;
  std::vector<std::vector<size_t>> followers_;  // for each step, the steps that wait for it
  std::vector<size_t> readers_;                 // number of steps that read each variable
  std::vector<std::vector<size_t>> columns_;    // the fetch columns of each variable
  size_t num_fetches_;
  std::vector<double> last_ms_;
};

}  // namespace paddle_ngraph
