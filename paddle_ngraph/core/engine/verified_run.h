// Runs that are compared with Paddle's kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/blake3.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_function.h"
#include "core/engine/work_spans.h"

namespace paddle_ngraph {

// Selects the runs to verify: one in FLAGS_ngraph_verify, beginning with the first.
class VerifiedRuns {
 public:
  // Whether the run that begins now is verified.
  bool next();

  // Whether the inputs of the run that begins now are copied for a profile, which has none yet.
  bool profiles() const;

  // A profile has the inputs of a run.
  void set_profiled() { profile_ = profile_number.load(); }

 private:
  std::atomic<uint64_t> runs_{0};     // while FLAGS_ngraph_verify is on
  std::atomic<uint64_t> profile_{0};  // the last profile that has inputs
};

// Copies of the inputs, states and random generator of a run of an engine, from before the run. A
// run for whose copies the memory does not suffice is counted as not compared.
class VerifiedRun {
 public:
  explicit VerifiedRun(const NgraphIO& io);

  // Compares the results of the run, which are in the variables of `io`, with those that Paddle's
  // kernels compute from the copies. Called once; the run and its variables stay as they are.
  // `weights`: the digests of the weights that the function may have as constants.
  void check(const std::string& graph, const NgraphIO& io, const std::vector<Digest>& weights);

  // Hands the inputs and states from before the run to the profile. Called instead of check().
  void profile(const std::string& graph);

 private:
  std::vector<phi::DenseTensor> given_;
  const bool is_copied_;
  GeneratorBefore random_;
};

}  // namespace paddle_ngraph
