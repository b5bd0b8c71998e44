#include "threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>

#include "../core/flags.h"

namespace paddle_ngraph::mkl_packed {

int max_threads() {
  if (FLAGS_ngraph_num_threads > 0) return FLAGS_ngraph_num_threads;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return 1;
  return std::max(1, CPU_COUNT(&usable));
}

int num_omp_threads() { return omp_get_max_threads(); }

OmpThreads::OmpThreads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }

OmpThreads::~OmpThreads() { omp_set_num_threads(before_); }

}  // namespace paddle_ngraph::mkl_packed
