#include "core/ov/own_operators.h"

#include <openvino/core/op_extension.hpp>
#include <tbb/task_arena.h>

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

std::vector<const char*> own_operators() {
  std::vector<const char*> names;
  for (const auto& extension : extension_ops()) {
    const auto operation = std::dynamic_pointer_cast<ov::BaseOpExtension>(extension);
    names.push_back(operation->get_type_info().name);
  }
  return names;
}

void with_threads(int threads, void (*function)(void*), void* data) {
  tbb::task_arena arena(threads);
  arena.execute([&] { function(data); });
}

}  // namespace paddle_ngraph
