// Build of a function in a thread of its own, for a run that waits for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>

#include <sys/types.h>

#include "core/engine/function_cache.h"
#include "core/engine/function_store.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Ctrl-C ends the wait of the run at once, another signal too if the run may fall back to Paddle,
// at whose end it is delivered then, as natively. The build goes on, and a later run waits for the
// rest of it, or finds its function in the cache. Thread-safe.
class AwaitedBuild {
 public:
  using FunctionPtr = std::shared_ptr<NgraphFunction>;

  // `functions` shares the ownership of the engine.
  AwaitedBuild(std::shared_ptr<FunctionStore> functions, Signature key,
               FunctionStore::FrozenInputs inputs, const Settings& settings);
  AwaitedBuild(const AwaitedBuild&) = delete;
  AwaitedBuild& operator=(const AwaitedBuild&) = delete;

  // Whether the function of this key is being built in this process: a forked one lacks the thread.
  bool is_for(const Signature& key) const;

  // Returns true to the first caller, which has to call build().
  bool begin();
  // From now on the function is not cached, and later runs do not wait for it.
  void cancel() { is_active_ = false; }
  // Builds the function and caches it. Throws nothing.
  void build();
  // Waits at most for a time. Returns whether the build is over.
  bool wait(double seconds);
  // The function, after the build. Throws the error of the build.
  FunctionPtr function() const;

 private:
  const std::shared_ptr<FunctionStore> functions_;
  const Signature key_;
  const FunctionStore::FrozenInputs inputs_;
  const Settings settings_;
  const pid_t process_;
  std::atomic<bool> is_active_{true};

  mutable std::mutex mutex_;
  std::condition_variable is_over_changed_;
  bool has_begun_ = false;
  bool is_over_ = false;
  FunctionPtr function_;
  std::exception_ptr error_;
};

}  // namespace paddle_ngraph
