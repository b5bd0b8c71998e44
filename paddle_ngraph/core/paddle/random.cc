#include "core/paddle/random.h"

#include <mutex>

#include "paddle/phi/core/generator.h"

#include "core/common/faults.h"
#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

void draw(const std::vector<Draw>& draws, const std::vector<void*>& outputs) {
  if (draws.empty()) return;
  const NoForkMeanwhile no_fork;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const auto shared = phi::DefaultCPUGenerator()->GetCPUEngine();
  for (size_t i = 0; i < draws.size(); ++i) draw(draws[i], shared.get(), outputs[i]);
  may_fail(Step::kDraw);
}

StreamGuard::StreamGuard(bool draws) {
  if (draws) before_ = *phi::DefaultCPUGenerator()->GetCPUEngine();
}

StreamGuard::~StreamGuard() {
  if (before_) *phi::DefaultCPUGenerator()->GetCPUEngine() = *before_;
}

}  // namespace paddle_ngraph
