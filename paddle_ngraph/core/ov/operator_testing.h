// Test interface of the extension operators, independent of the machine.
#pragma once

#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// The names of all extension operators, as in the table in extension_ops.cc.
std::vector<const char*> extension_op_names();

// The division of one loop among threads, for tests: number of tasks, their total work in
// multiplications, and the largest load of a thread over the mean.
struct DividedWork {
  int64_t tasks;
  double multiplies;
  double imbalance;
};

// For tests: calls function(data). Operators that the function evaluates divide their work among
// this many threads, even if there are fewer cores. Returns the division of each of their loops.
// One call at a time.
std::vector<DividedWork> run_with_threads(int threads, void (*function)(void*), void* data);

}  // namespace paddle_ngraph
