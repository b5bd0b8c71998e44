// A run of an engine whose results are compared with those of Paddle's kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/engine/ngraph_function.h"
#include "core/paddle/random.h"

namespace paddle_ngraph {

// Copies of the inputs, states and random generator of a run, from before the run. A run for whose
// copies the memory does not suffice is not compared.
class VerifiedRun {
 public:
  explicit VerifiedRun(const NgraphIO& io);

  // Compares the results of the run, which are in the variables of `io`, with those that Paddle's
  // kernels compute from the copies. Called once; the run and its variables stay as they are.
  void check(const std::string& graph, const NgraphIO& io);

 private:
  std::vector<phi::DenseTensor> given_;
  const bool is_copied_;
  // Counted before the generator is copied, so that no change in between is missed.
  const int64_t other_changes_ = generator_changes_of_other_threads();
  RandomState random_;
};

}  // namespace paddle_ngraph
