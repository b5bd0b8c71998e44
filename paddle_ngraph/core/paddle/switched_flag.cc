#include "core/paddle/switched_flag.h"

#include <chrono>
#include <utility>

#include "paddle/common/flags.h"

#include "core/common/error.h"

COMMON_DECLARE_bool(enable_pir_in_executor);
COMMON_DECLARE_bool(enable_pir_in_executor_trace_run);
COMMON_DECLARE_bool(new_executor_sequential_run);
COMMON_DECLARE_bool(pir_apply_inplace_pass);

namespace paddle_ngraph {

SwitchedFlag& SwitchedFlag::of(const std::string& name) {
  static SwitchedFlag pir(FLAGS_enable_pir_in_executor, true);
  static SwitchedFlag trace_run(FLAGS_enable_pir_in_executor_trace_run, true);
  static SwitchedFlag sequential_run(FLAGS_new_executor_sequential_run, true);
  static SwitchedFlag inplace_pass(FLAGS_pir_apply_inplace_pass, false);
  if (name == "enable_pir_in_executor") return pir;
  if (name == "enable_pir_in_executor_trace_run") return trace_run;
  if (name == "new_executor_sequential_run") return sequential_run;
  if (name == "pir_apply_inplace_pass") return inplace_pass;
  throw InvalidInput(concat("FLAGS_", name, " is not switched for runs"));
}

bool SwitchedFlag::may_enter(Use use) const {
  const Use other = use == kSwitched ? kAsSet : kSwitched;
  return is_the_users() || (users_[other] == 0 && (waiting_[other] == 0 || next_ == use));
}

void SwitchedFlag::enter(Use use) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiting_[use];
  left_.wait_for(lock, std::chrono::seconds(10), [&] { return may_enter(use); });
  --waiting_[use];
  next_ = use == kSwitched ? kAsSet : kSwitched;
  if (users_[use]++ == 0 && use == kSwitched) before_ = std::exchange(flag_, to_);
  left_.notify_all();
}

void SwitchedFlag::exit(Use use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--users_[use] == 0 && use == kSwitched) flag_ = before_;
  left_.notify_all();
}

}  // namespace paddle_ngraph
