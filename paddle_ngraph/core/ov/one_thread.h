// Single-threaded oneDNN: its own threads are OpenMP's and would compete with the plugin's. The
// plugin's threads share the work, and each of them calls oneDNN's kernels.
#pragma once

extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int);
}

namespace paddle_ngraph {

// Has oneDNN compute in the calling thread only, while this object lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace paddle_ngraph
