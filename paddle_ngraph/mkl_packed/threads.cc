#include "mkl_packed/threads.h"

#include <algorithm>

#include <omp.h>

#include "core/common/threads.h"

namespace paddle_ngraph::mkl_packed {

int max_threads() { return num_threads(); }

int num_omp_threads() { return omp_get_max_threads(); }

OmpThreads::OmpThreads(int count)
    : before_(omp_get_max_threads()), was_dynamic_(omp_get_dynamic() != 0) {
  omp_set_dynamic(0);
  omp_set_num_threads(std::min(count, omp_get_thread_limit()));
}

OmpThreads::~OmpThreads() {
  omp_set_num_threads(before_);
  omp_set_dynamic(was_dynamic_ ? 1 : 0);
}

}  // namespace paddle_ngraph::mkl_packed
