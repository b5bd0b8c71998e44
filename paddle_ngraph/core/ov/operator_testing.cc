#include "core/ov/operator_testing.h"

#include <numeric>

#include <openvino/core/op_extension.hpp>
#include <tbb/task_arena.h>

#include "core/ov/extension_ops.h"
#include "core/ov/work_division.h"

namespace paddle_ngraph {

std::vector<const char*> extension_op_names() {
  std::vector<const char*> names;
  for (const auto& extension : extension_ops()) {
    const auto operation = std::dynamic_pointer_cast<ov::BaseOpExtension>(extension);
    names.push_back(operation->get_type_info().name);
  }
  return names;
}

std::vector<DividedWork> run_with_threads(int threads, void (*function)(void*), void* data) {
  DivisionRecorder recorder;
  tbb::task_arena arena(threads);
  arena.execute([&] { function(data); });
  std::vector<DividedWork> found;
  for (const auto& tasks : recorder.take_divisions()) {
    const double multiplies = std::accumulate(tasks.begin(), tasks.end(), 0.0);
    found.push_back({static_cast<int64_t>(tasks.size()), multiplies, imbalance(tasks, threads)});
  }
  return found;
}

}  // namespace paddle_ngraph
