#include "core/lazy/garbage_collection.h"

namespace paddle_ngraph {

// Switches Python's garbage collector on or off; returns whether it was on.
static bool set_gc_enabled(bool on) {
#if PY_VERSION_HEX >= 0x030A0000
  return (on ? PyGC_Enable() : PyGC_Disable()) == 1;
#else  // this Python has no C function for the switch that may be called after a fork
  static_cast<void>(on);
  return false;
#endif
}

GcPause::GcPause() {
  if (num_pauses++ == 0) was_enabled = set_gc_enabled(false);
  ++num_thread_pauses;
}

GcPause::~GcPause() {
  --num_thread_pauses;
  if (--num_pauses == 0 && was_enabled) set_gc_enabled(true);
}

void GcPause::reset_after_fork() {
  if (num_pauses > 0 && num_thread_pauses == 0 && was_enabled) set_gc_enabled(true);
  num_pauses = num_thread_pauses;
}

}  // namespace paddle_ngraph
