// Steps of a program that start as soon as their inputs are there, side by side where the cores of
// their devices allow it. plan/data_dependency_engine.py makes them of programs.
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
    // Called by any thread, without the GIL. Returns what it writes.
    std::function<std::vector<phi::DenseTensor>()> compute;
    std::vector<size_t> after;          // the steps that it waits for, all of them before it
    std::vector<Cores> groups;          // it takes all cores of one of these, or waits
    std::vector<size_t> reads, writes;  // by number; each once
  };

  // variables: where steps find what others wrote. They outlive this. Throws NgraphError if a step
  // waits for one that is not before it, or names what is not there.
  DataDependencyEngine(std::vector<Step> steps, std::vector<phi::DenseTensor*> variables,
                       const std::vector<size_t>& fetches);

  // One run, by so many threads; returns what is fetched. A variable is cleared when its last
  // reader has ended. If a step fails, no other is started, and what the first one threw, in the
  // order of steps, is thrown when those that were running have ended; all variables are cleared
  // then. One run at a time.
  std::vector<phi::DenseTensor> run(size_t threads);

  // How long each step took in the last run, in milliseconds: from when all was there that it
  // needs, a thread included that had begun the run or ended another step, to its end. So the time
  // counts that a thread takes to wake.
  const std::vector<double>& last_ms() const { return last_ms_; }

 private:
  class Run;

  std::vector<Step> steps_;
  std::vector<phi::DenseTensor*> variables_;
  std::vector<std::vector<size_t>> followers_;  // of each step
  std::vector<size_t> readers_;                 // of each variable, how many steps
  std::vector<std::vector<size_t>> columns_;    // of each variable, where it is fetched
  size_t num_fetches_;
  std::vector<double> last_ms_;
};

}  // namespace paddle_ngraph
