// Loops on the threads of the CPU plugin: an operator's evaluate runs inside the plugin's TBB
// arena, and thus uses the plugin's number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "core/ov/work_division.h"

namespace paddle_ngraph {

// Number of threads among which the calling thread can divide work, itself included.
inline int64_t shared_threads() { return tbb::this_task_arena::max_concurrency(); }

// Index of the calling thread among the shared_threads(), from 0 on.
inline int64_t thread_index() { return std::max(0, tbb::this_task_arena::current_thread_index()); }

// The number of elementary steps below which another thread costs more than it saves.
constexpr int64_t kStepsPerTask = 1 << 14;

// Calls body(task) for the tasks of a grid, each of which is worth a thread. `multiplies` is the
// total work.
template <typename Body>
void parallel_tasks(const Grid& grid, double multiplies, const Body& body) {
  if (DivisionRecorder::is_recording()) DivisionRecorder::record_tasks(grid, multiplies);
  const int64_t tasks = grid.tasks();
  if (tasks == 1) return body(int64_t{0});
  tbb::parallel_for(
      tbb::blocked_range<int64_t>(0, tasks, 1),
      [&](const tbb::blocked_range<int64_t>& part) {
        for (int64_t task = part.begin(); task < part.end(); ++task) body(task);
      },
      tbb::simple_partitioner());
}

// Calls body(begin, end) on chunks that make up [0, count). `steps` is the work of one index.
template <typename Body>
void parallel_ranges(int64_t count, int64_t steps, const Body& body) {
  if (count <= 0) return;
  const Grid grid({count},
                  {num_even_parts(count, count * steps / kStepsPerTask, shared_threads())});
  const double multiplies = static_cast<double>(count * steps) * kMultipliesPerStep;
  parallel_tasks(grid, multiplies, [&](int64_t task) {
    const Range part = grid.range(0, task);
    body(part.begin, part.end);
  });
}

}  // namespace paddle_ngraph
