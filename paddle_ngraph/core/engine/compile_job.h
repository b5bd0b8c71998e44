// A function that is built in the background, while Paddle runs its interval.
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

class NgraphEngine;
struct NgraphIO;

// Everything that a build needs, so that it outlives the run which gave the order. While there is
// an order that was neither built nor cancelled, its engine gives no other one. Thread-safe.
class CompileJob {
 public:
  CompileJob(std::shared_ptr<const NgraphEngine> engine, Signature key,
             std::shared_ptr<const Snapshot> snapshot, const Settings& settings);
  ~CompileJob();
  CompileJob(const CompileJob&) = delete;
  CompileJob& operator=(const CompileJob&) = delete;

  // Paddle has run the interval on the inputs of the order: if the build fails, that is not due to
  // them.
  void note_fallback_succeeded() { fallback_succeeded_ = true; }

  // Builds the function and keeps it, unless the order is cancelled meanwhile. Throws nothing: what
  // the build throws, the next run throws that needs the function; or any run of the graph, if the
  // inputs are not to blame.
  void build();

  // From here on nothing becomes of it: whoever clears the cache of functions after that finds no
  // function of it there later. Takes no lock, since a forked process cancels what it has not
  // ordered.
  void cancel();

  // The graph string.
  const std::string& graph() const;

  // How many runs of its engine were native while functions were built.
  int64_t fallback_runs() const;

  // Whether the copies of another order of so many bytes may be kept, besides those of the orders
  // that there are. A single one may be of any size.
  static bool has_capacity_for(size_t bytes);

 private:
  void record_failure(bool is_for_all) const;
  NgraphIO shapes() const;
  void free();

  std::shared_ptr<const NgraphEngine> engine_;
  Signature key_;
  std::shared_ptr<const Snapshot> snapshot_;
  Settings settings_;
  size_t num_bytes_;
  std::atomic<bool> is_active_{true};
  std::atomic<bool> fallback_succeeded_{false};
};

}  // namespace paddle_ngraph
