// Compile job: a function built in the background while Paddle runs its subgraph.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/engine/function_cache.h"
#include "core/engine/snapshot.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

class BackgroundCompiler;
class FunctionStore;
struct NgraphIO;

// A function to build in the background, with all inputs of the build, so that the job outlives the
// run that submitted it. An engine has at most one job that is neither built nor cancelled.
// Thread-safe.
class CompileJob {
 public:
  // The job retains `functions`, and with it the engine, which owns both `functions` and
  // `background`.
  CompileJob(std::shared_ptr<FunctionStore> functions, BackgroundCompiler* background,
             Signature key, std::shared_ptr<const Snapshot> snapshot, const Settings& settings);
  ~CompileJob();
  CompileJob(const CompileJob&) = delete;
  CompileJob& operator=(const CompileJob&) = delete;

  // Records that Paddle has run the subgraph on the inputs of the job: a failure of the build is
  // then not due to these inputs.
  void note_fallback_succeeded() { fallback_succeeded_ = true; }

  // Builds the function and caches it, unless the job is cancelled during the build. Throws
  // nothing: an error of the build is recorded and thrown by the next run that needs the function,
  // or by any run of the graph if the inputs did not cause the error.
  void build();

  // Cancels the job: no function of this job enters the function cache any more, so a cache cleared
  // afterwards stays free of it. Takes no lock, since a forked process cancels jobs that it did not
  // submit.
  void cancel();

  // The graph string of the subgraph that the job compiles.
  const std::string& graph() const;

  // Whether another job may retain copies of weights, `bytes` bytes, in addition to those of the
  // present jobs. A single job may have any size.
  static bool has_capacity_for(size_t bytes);

 private:
  void record_failure(bool is_for_all) const;
  NgraphIO shapes() const;
  void free();

  std::shared_ptr<FunctionStore> functions_;
  BackgroundCompiler* background_;
  Signature key_;
  std::shared_ptr<const Snapshot> snapshot_;
  Settings settings_;
  size_t num_bytes_;
  std::atomic<bool> is_active_{true};
  std::atomic<bool> fallback_succeeded_{false};
};

}  // namespace paddle_ngraph
