#include "core/common/affinity.h"

#include <algorithm>

#include <sched.h>

namespace paddle_ngraph {

int cores_by_affinity() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return 1;
  return std::max(1, CPU_COUNT(&usable));
}

}  // namespace paddle_ngraph
