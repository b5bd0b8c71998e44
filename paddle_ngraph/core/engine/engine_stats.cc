#include "core/engine/engine_stats.h"

namespace paddle_ngraph {

EngineStats& EngineStats::instance() {
  static EngineStats stats;
  return stats;
}

void EngineStats::reset() {
  engine_runs = 0;
  native_runs = 0;
  runs_while_compiling = 0;
  functions_built = 0;
  functions_built_in_background = 0;
  functions_loaded = 0;
  functions_reused = 0;
  functions_with_weights = 0;
  functions_with_weights_in_place = 0;
  steps_in_place = 0;
  optimizer_steps = 0;
  clipping_loops = 0;
  gradients_held = 0;
  rests_shared_out = 0;
}

}  // namespace paddle_ngraph
