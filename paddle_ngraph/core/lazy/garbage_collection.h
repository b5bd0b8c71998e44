// Pausing Python's garbage collector.
#pragma once

#include <pybind11/pytypes.h>

namespace paddle_ngraph {

// Pauses the collector during its lifetime. Finalizers may call Paddle, in any thread: such a call
// would wait for the tensors that are being computed, or end up in a program.
class GcPause {
 public:
  GcPause();
  ~GcPause();
  GcPause(const GcPause&) = delete;
  GcPause& operator=(const GcPause&) = delete;

  // Ends the pauses of other threads in a forked process, where only the thread that called fork()
  // exists.
  static void reset_after_fork();

 private:
  // Guarded by the GIL: nested pauses, and whether the collector was on before.
  static inline int num_pauses = 0;
  static inline bool was_enabled = false;
  static inline thread_local int num_thread_pauses = 0;
};

}  // namespace paddle_ngraph
