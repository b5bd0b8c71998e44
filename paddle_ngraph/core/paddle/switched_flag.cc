#include "core/paddle/switched_flag.h"

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

const std::array<SwitchedFlag*, SwitchedFlag::kFlags>& SwitchedFlag::all() {
  const auto make = [](size_t number, const char* name, bool& flag, bool to) {
    return std::unique_ptr<SwitchedFlag>(new SwitchedFlag(number, name, flag, to)).release();
  };
  static const std::array<SwitchedFlag*, kFlags> flags{
      make(0, "enable_pir_in_executor", FLAGS_enable_pir_in_executor, true),
      make(1, "enable_pir_in_executor_trace_run", FLAGS_enable_pir_in_executor_trace_run, true),
      make(2, "new_executor_sequential_run", FLAGS_new_executor_sequential_run, true),
      make(3, "pir_apply_inplace_pass", FLAGS_pir_apply_inplace_pass, false)};
  // Behind the mutexes, which are free then.
  static const int registered = pthread_atfork(nullptr, nullptr, forget_other_threads);
  static_cast<void>(registered);
  return flags;
}

SwitchedFlag& SwitchedFlag::of(const std::string& name) {
  for (auto* flag : all()) {
    if (flag->name_ == name) return *flag;
  }
  throw InvalidInput(concat("FLAGS_", name, " is not switched for runs"));
}

SwitchedFlag::Uses& SwitchedFlag::uses_here() const {
  thread_local std::array<Uses, kFlags> uses{};
  return uses.at(number_);
}

bool SwitchedFlag::may_enter(Use use) const {
  const Use other = use == kSwitched ? kAsSet : kSwitched;
  return is_the_users() || (users_[other] == 0 && (waiting_[other] == 0 || next_ == use));
}

void SwitchedFlag::enter(Use use) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiting_[use];
  left_->wait_for(lock, std::chrono::seconds(10), [&] { return may_enter(use); });
  --waiting_[use];
  next_ = use == kSwitched ? kAsSet : kSwitched;
  if (users_[use]++ == 0 && use == kSwitched) before_ = std::exchange(flag_, to_);
  ++uses_here()[use];
  left_->notify_all();
}

void SwitchedFlag::exit(Use use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--users_[use] == 0 && use == kSwitched) flag_ = before_;
  if (uses_here()[use] > 0) --uses_here()[use];
  left_->notify_all();
}

void SwitchedFlag::forget_other_threads() {
  for (auto* flag : all()) flag->forget_others();
}

void SwitchedFlag::forget_others() {
  // It counts on threads that wait; to destroy it would be to wait for them.
  static_cast<void>(left_.release());
  left_ = std::make_unique<std::condition_variable>();
  const bool was_switched = users_[kSwitched] > 0;
  users_ = uses_here();
  waiting_ = {};
  if (was_switched && users_[kSwitched] == 0) flag_ = before_;
}

}  // namespace paddle_ngraph
