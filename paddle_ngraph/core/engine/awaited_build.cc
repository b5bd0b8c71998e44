#include "core/engine/awaited_build.h"

#include <chrono>
#include <utility>

#include <unistd.h>

namespace paddle_ngraph {

AwaitedBuild::AwaitedBuild(std::shared_ptr<FunctionStore> functions, Signature key,
                           FunctionStore::FrozenInputs inputs, const Settings& settings)
    : functions_(std::move(functions)),
      key_(std::move(key)),
      inputs_(std::move(inputs)),
      settings_(settings),
      process_(getpid()) {}

bool AwaitedBuild::is_for(const Signature& key) const {
  // The mutex may be locked in a forked process, which lacks the thread that would unlock it.
  if (process_ != getpid() || !is_active_) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return !is_over_ && key_ == key;
}

bool AwaitedBuild::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !std::exchange(has_begun_, true);
}

void AwaitedBuild::build() {
  FunctionPtr function;
  std::exception_ptr error;
  try {
    function = functions_->build_and_cache(key_, *inputs_.snapshot, settings_, &is_active_,
                                           Reason::kBuilt, inputs_.variables.get());
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    function_ = std::move(function);
    error_ = std::move(error);
    is_over_ = true;
  }
  is_over_changed_.notify_all();
}

bool AwaitedBuild::wait(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  return is_over_changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                   [this] { return is_over_; });
}

AwaitedBuild::FunctionPtr AwaitedBuild::function() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  return function_;
}

}  // namespace paddle_ngraph
