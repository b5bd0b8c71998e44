// Arithmetic as IEEE 754 has it, whatever the thread was set to.
#pragma once

#include <cfenv>

namespace paddle_ngraph {

// The default floating-point environment for the calling thread, until this is destroyed.
//
// Paddle Inference runs a predictor with denormals flushed to zero. Threads inherit that from the
// one that starts them, and TBB's arenas from the one that makes them; both outlive the run, and
// the plugin gives its arenas to other functions. So a function, and all that it starts, is made
// and run like this, and its results do not depend on what ran before.
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
