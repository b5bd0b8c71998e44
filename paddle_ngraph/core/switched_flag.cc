#include "switched_flag.h"

#include "error.h"
#include "paddle/common/flags.h"

COMMON_DECLARE_bool(enable_pir_in_executor);
COMMON_DECLARE_bool(enable_pir_in_executor_trace_run);
COMMON_DECLARE_bool(new_executor_sequential_run);

namespace paddle_ngraph {

SwitchedFlag& SwitchedFlag::of(const std::string& name) {
  static SwitchedFlag pir(FLAGS_enable_pir_in_executor);
  static SwitchedFlag trace_run(FLAGS_enable_pir_in_executor_trace_run);
  static SwitchedFlag sequential_run(FLAGS_new_executor_sequential_run);
  if (name == "enable_pir_in_executor") return pir;
  if (name == "enable_pir_in_executor_trace_run") return trace_run;
  if (name == "new_executor_sequential_run") return sequential_run;
  throw InvalidInput(concat("FLAGS_", name, " is not switched for runs"));
}

void SwitchedFlag::enter() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (users_++ > 0) return;
  before_ = flag_;
  flag_ = true;
}

void SwitchedFlag::exit() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (--users_ == 0) flag_ = before_;
}

}  // namespace paddle_ngraph
