// Division of threads among the runs of an engine that overlap.
#pragma once

#include <atomic>

#include "core/engine/concurrency.h"
#include "core/engine/graph_header.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Thread-safe.
class ThreadSharing {
 public:
  explicit ThreadSharing(const GraphHeader& header)
      : is_enabled_(header.has_frozen_weights() && header.num_states == 0 && header.is_on_cpu()) {}

  Concurrency* concurrency() { return &concurrency_; }

  // Settings of a function for overlapping runs: each run has as many threads as a single run,
  // while there are enough cores.
  Settings shared(const Settings& settings, const Concurrency::Run& run) const;

  // From now on, the functions of all runs have the settings for one run at a time.
  void disable() { is_enabled_ = false; }

 private:
  Concurrency concurrency_;
  std::atomic<bool> is_enabled_;
};

}  // namespace paddle_ngraph
