// Default IEEE 754 arithmetic for a scope, independent of the thread's settings.
#pragma once

#include <xmmintrin.h>

namespace paddle_ngraph {

// Sets the default SSE floating-point environment (register MXCSR) of the calling thread, until
// destruction. <cfenv> saves the x87 unit too, which takes ten times as long.
//
// Paddle Inference runs a predictor with denormals flushed to zero. Threads inherit this mode from
// their parent thread, and TBB's arenas from the thread that creates them; both outlive the run,
// and the plugin reuses its arenas for other functions. So a function and all its threads are built
// and run in this environment, and its results do not depend on earlier runs.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  // MXCSR: all exceptions masked, round to nearest, denormals computed.
  static constexpr unsigned int kDefault = 0x1f80;

  unsigned int before_;
};

}  // namespace paddle_ngraph
