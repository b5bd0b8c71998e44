#include "core/paddle/random.h"

#include <mutex>

#include "paddle/phi/core/generator.h"

#include "core/common/fault_injection.h"
#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

void sample(const std::vector<RandomSample>& samples, const std::vector<void*>& outputs) {
  if (samples.empty()) return;
  const ForkBlocker fork_blocker;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const auto shared = phi::DefaultCPUGenerator()->GetCPUEngine();
  for (size_t i = 0; i < samples.size(); ++i) sample(samples[i], shared.get(), outputs[i]);
  inject_fault(Step::kDraw);
}

RandomState::RandomState() : engine_(*phi::DefaultCPUGenerator()->GetCPUEngine()) {}

void RandomState::restore() const { *phi::DefaultCPUGenerator()->GetCPUEngine() = engine_; }

StreamGuard::StreamGuard(bool samples) {
  if (samples) before_.emplace();
}

StreamGuard::~StreamGuard() {
  if (before_) before_->restore();
}

}  // namespace paddle_ngraph
