// Arithmetic as in IEEE 754, whatever the thread's settings.
#pragma once

#include <cfenv>

namespace paddle_ngraph {

// The default floating-point environment for the calling thread, until this is destroyed.
//
// Paddle Inference runs a predictor with denormals flushed to zero. Threads inherit that from the
// one that starts them, and TBB's arenas from the one that makes them; both outlive the run, and
// the plugin reuses its arenas for other functions. So a function, and everything that it starts,
// is built and run in this environment, and its results do not depend on what ran before.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace paddle_ngraph
