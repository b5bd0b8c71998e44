// Flags of Paddle's executor that a run needs: they are the process's, not the run's.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

namespace paddle_ngraph {

// A flag that is on while any thread needs it; then it is again what it was.
class SwitchedFlag {
 public:
  // enable_pir_in_executor:           Executors take PIR programs.
  // new_executor_sequential_run:      Operators run as they stand in the program; read when an
  //                                   executor first meets a block.
  // enable_pir_in_executor_trace_run: A run stays in the thread that asks for it, one operator
  //                                   after the other; read at each run.
  // Throws InvalidInput for any other name.
  static SwitchedFlag& of(const std::string& name);

  SwitchedFlag(const SwitchedFlag&) = delete;
  SwitchedFlag& operator=(const SwitchedFlag&) = delete;

  void enter();
  void exit();

 private:
  explicit SwitchedFlag(bool& flag) : flag_(flag) {}

  bool& flag_;
  std::mutex mutex_;
  size_t users_ = 0;
  bool before_ = false;
};

}  // namespace paddle_ngraph
