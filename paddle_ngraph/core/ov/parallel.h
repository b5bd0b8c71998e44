// Loops on the threads of the CPU plugin: an operator's evaluate runs inside the plugin's TBB
// arena, and so keeps to its number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "core/ov/split.h"

namespace paddle_ngraph {

// The threads that the calling thread can share work with, itself included.
inline int64_t shared_threads() { return tbb::this_task_arena::max_concurrency(); }

// The number of the calling thread among them, from 0 on.
inline int64_t thread_number() { return std::max(0, tbb::this_task_arena::current_thread_index()); }

// The number of elementary steps below which another thread costs more than it saves.
constexpr int64_t kStepsPerTask = 1 << 14;

// Calls body(begin, end) on parts that make up [0, count). `steps` is the work of one index.
template <typename Body>
void parallel_ranges(int64_t count, int64_t steps, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kStepsPerTask / std::max<int64_t>(1, steps));
  if (Divisions::are_noted()) Divisions::note_ranges(count, steps, grain);
  if (count <= grain) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(0, count, grain),
      [&](const tbb::blocked_range<int64_t>& part) { body(part.begin(), part.end()); });
}

// The same with few long parts, whatever one index costs: for a body that repeats some work in
// every part. `steps` is the work of the whole loop.
template <typename Body>
void parallel_shares(int64_t count, int64_t steps, const Body& body) {
  if (count <= 0) return;
  constexpr int64_t kSharesPerThread = 4;  // evens out shares of different work
  const int64_t wanted =
      std::min<int64_t>(steps / kStepsPerTask, kSharesPerThread * shared_threads());
  const int64_t shares = std::max<int64_t>(1, std::min(wanted, count));
  const int64_t grain = (count + shares - 1) / shares;
  parallel_ranges((count + grain - 1) / grain, kStepsPerTask, [&](int64_t begin, int64_t end) {
    body(begin * grain, std::min(end * grain, count));
  });
}

// Calls body(task) for the tasks of a grid, each of which is worth a thread. `products` is the work
// of all.
template <typename Body>
void parallel_tasks(const Grid& grid, double products, const Body& body) {
  if (Divisions::are_noted()) Divisions::note_tasks(grid, products);
  const int64_t tasks = grid.tasks();
  if (tasks == 1) return body(int64_t{0});
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(0, tasks, 1),
      [&](const tbb::blocked_range<int64_t>& part) {
        for (int64_t task = part.begin(); task < part.end(); ++task) body(task);
      },
      tbb::simple_partitioner());
}

}  // namespace paddle_ngraph
