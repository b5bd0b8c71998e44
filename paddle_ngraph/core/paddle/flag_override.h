// Overrides of Paddle's executor flags during a run, although the flags are global to the process.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <string>

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

// A flag that has another value while any thread needs it, and is then restored. Threads that need
// the user's value and threads that need the override alternate. In a forked process only the uses
// of the forking thread remain.
class FlagOverride {
 public:
  // enable_pir_in_executor:           On: executors take PIR programs.
  // new_executor_sequential_run:      On: operators run in program order; read at the
  //                                   first run of a block by an executor.
  // enable_pir_in_executor_trace_run: On: a run stays in the calling thread, one operator
  //                                   after the other; read at each run.
  // pir_apply_inplace_pass:           Off: no operator reuses the memory of an input of which it
  //                                   is the last reader; read when an executor is created.
  // Throws InvalidInput for any other name.
  static FlagOverride& of(const std::string& name);

  enum Use : size_t { kOverridden = 0, kUserValue = 1 };

  FlagOverride(const FlagOverride&) = delete;
  FlagOverride& operator=(const FlagOverride&) = delete;

  // Begins a use of the flag. Waits until no thread uses its other value, but for ten seconds at
  // most, since such a thread may be waiting for this one (py_func runs programs inside programs).
  void enter(Use use);
  void exit(Use use);

 private:
  static constexpr size_t kFlags = 4;
  using Uses = std::array<size_t, 2>;

  // All FlagOverrides of the process; never destroyed.
  static const std::array<FlagOverride*, kFlags>& all();
  static void reset_after_fork();

  FlagOverride(size_t number, const char* name, bool& flag, bool to)
      : number_(number), name_(name), flag_(flag), to_(to) {}
  Uses& uses_here() const;  // the uses of the flag that this thread has entered
  bool is_user_value() const { return (users_[kOverridden] > 0 ? before_ : flag_) == to_; }
  bool may_enter(Use use) const;
  void drop_other_threads();

  const size_t number_;
  const char* const name_;
  bool& flag_;
  const bool to_;
  ForkSafeMutex mutex_;
  std::unique_ptr<std::condition_variable> released_ = std::make_unique<std::condition_variable>();
  Uses users_{};
  Uses waiting_{};
  Use next_use_ = kOverridden;  // the use that begins next if threads wait for both
  bool before_ = false;
};

}  // namespace paddle_ngraph
