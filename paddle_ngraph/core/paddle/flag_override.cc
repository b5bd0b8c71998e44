#include "core/paddle/flag_override.h"

#include <chrono>
#include <utility>

#include <pthread.h>

#include "paddle/common/flags.h"

#include "core/common/error.h"

COMMON_DECLARE_bool(enable_pir_in_executor);
COMMON_DECLARE_bool(enable_pir_in_executor_trace_run);
COMMON_DECLARE_bool(new_executor_sequential_run);
COMMON_DECLARE_bool(pir_apply_inplace_pass);

namespace paddle_ngraph {

const std::array<FlagOverride*, FlagOverride::kFlags>& FlagOverride::all() {
  const auto make = [](size_t number, const char* name, bool& flag, bool to) {
    return std::unique_ptr<FlagOverride>(new FlagOverride(number, name, flag, to)).release();
  };
  static const std::array<FlagOverride*, kFlags> flags{
      make(0, "enable_pir_in_executor", FLAGS_enable_pir_in_executor, true),
      make(1, "enable_pir_in_executor_trace_run", FLAGS_enable_pir_in_executor_trace_run, true),
      make(2, "new_executor_sequential_run", FLAGS_new_executor_sequential_run, true),
      make(3, "pir_apply_inplace_pass", FLAGS_pir_apply_inplace_pass, false)};
  // Registered after the fork handlers of the mutexes: in the child, the mutexes are unlocked
  // before reset_after_fork() runs.
  static const int registered = pthread_atfork(nullptr, nullptr, reset_after_fork);
  static_cast<void>(registered);
  return flags;
}

FlagOverride& FlagOverride::of(const std::string& name) {
  for (auto* flag : all()) {
    if (flag->name_ == name) return *flag;
  }
  throw InvalidInput(concat("FLAGS_", name, " is not switched for runs"));
}

FlagOverride::Uses& FlagOverride::uses_here() const {
  thread_local std::array<Uses, kFlags> uses{};
  return uses.at(number_);
}

bool FlagOverride::may_enter(Use use) const {
  const Use other = use == kOverridden ? kUserValue : kOverridden;
  return is_user_value() || (users_[other] == 0 && (waiting_[other] == 0 || next_use_ == use));
}

void FlagOverride::enter(Use use) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiting_[use];
  released_->wait_for(lock, std::chrono::seconds(10), [&] { return may_enter(use); });
  --waiting_[use];
  next_use_ = use == kOverridden ? kUserValue : kOverridden;
  if (users_[use]++ == 0 && use == kOverridden) before_ = std::exchange(flag_, to_);
  ++uses_here()[use];
  released_->notify_all();
}

void FlagOverride::exit(Use use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--users_[use] == 0 && use == kOverridden) flag_ = before_;
  if (uses_here()[use] > 0) --uses_here()[use];
  released_->notify_all();
}

void FlagOverride::reset_after_fork() {
  for (auto* flag : all()) flag->drop_other_threads();
}

void FlagOverride::drop_other_threads() {
  // The condition variable is leaked: it counts the waiting threads of the parent process, and its
  // destructor would wait for them.
  static_cast<void>(released_.release());
  released_ = std::make_unique<std::condition_variable>();
  const bool was_switched = users_[kOverridden] > 0;
  users_ = uses_here();
  waiting_ = {};
  if (was_switched && users_[kOverridden] == 0) flag_ = before_;
}

}  // namespace paddle_ngraph
