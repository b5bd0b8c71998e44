// Arithmetic as in IEEE 754, whatever the thread's settings.
#pragma once

#include <xmmintrin.h>

namespace paddle_ngraph {

// The default floating-point environment for the calling thread, until this is destroyed: that of
// SSE, the register MXCSR. <cfenv> saves the x87 unit too, which takes ten times as long.
//
// Paddle Inference runs a predictor with denormals flushed to zero. Threads inherit that from the
// one that starts them, and TBB's arenas from the one that makes them; both outlive the run, and
// the plugin reuses its arenas for other functions. So a function, and everything that it starts,
// is built and run in this environment, and its results do not depend on what ran before.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatEnvironment() { _mm_setcsr(before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  static constexpr unsigned int kDefault = 0x1f80;  // all exceptions masked, round to nearest

  unsigned int before_;
};

}  // namespace paddle_ngraph
