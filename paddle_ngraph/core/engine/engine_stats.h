// Counters of all engines, for `paddle_ngraph.stats()`.
#pragma once

#include <atomic>
#include <cstdint>

namespace paddle_ngraph {

struct EngineStats {
  std::atomic<int64_t> engine_runs{0};
  std::atomic<int64_t> native_runs{0};
  std::atomic<int64_t> runs_while_compiling{0};
  std::atomic<int64_t> functions_built{0};
  std::atomic<int64_t> functions_built_in_background{0};
  std::atomic<int64_t> functions_loaded{0};
  std::atomic<int64_t> functions_reused{0};
  std::atomic<int64_t> functions_with_weights{0};
  std::atomic<int64_t> functions_with_weights_in_place{0};
  std::atomic<int64_t> steps_in_place{0};
  std::atomic<int64_t> optimizer_steps{0};
  std::atomic<int64_t> clipping_loops{0};
  std::atomic<int64_t> gradients_held{0};
  std::atomic<int64_t> rests_shared_out{0};

  static EngineStats& instance();
  void reset();
};

}  // namespace paddle_ngraph
