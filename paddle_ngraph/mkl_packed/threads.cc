#include "threads.h"

#include <omp.h>

#include "../core/threads.h"

namespace paddle_ngraph::mkl_packed {

int max_threads() { return num_threads(); }

int num_omp_threads() { return omp_get_max_threads(); }

OmpThreads::OmpThreads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }

OmpThreads::~OmpThreads() { omp_set_num_threads(before_); }

}  // namespace paddle_ngraph::mkl_packed
