// What tests need of our own operators, on any machine.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// The names of all of them, as in the table in extension_ops.cc.
std::vector<const char*> extension_op_names();

// What a loop has divided among threads: into how many tasks, the work of all in multiplications,
// and the largest share of a thread over the mean.
struct DividedWork {
  int64_t tasks;
  double multiplies;
  double imbalance;
};

// Calls function(data). Operators evaluated in it split their work among this many threads, even if
// there are fewer cores. Tells how each of their loops was divided. One call at a time.
std::vector<DividedWork> run_with_threads(int threads, void (*function)(void*), void* data);

}  // namespace paddle_ngraph
