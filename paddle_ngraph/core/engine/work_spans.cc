#include "core/engine/work_spans.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "core/common/fork_safe_mutex.h"
#include "core/engine/events.h"

namespace paddle_ngraph {

namespace {

// As many as events in the ring, some of which have several spans.
constexpr size_t kMaxSpans = size_t{1} << 18;

// Never destroyed: threads may run when the process ends.
struct Spans {
  ForkSafeMutex mutex;
  std::vector<FinishedSpan> finished;
};

Spans& spans() {
  static Spans* const all = std::make_unique<Spans>().release();
  return *all;
}

int64_t monotonic_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

WorkSpan::WorkSpan(WorkKind work) noexcept
    : work_(work), start_ns_(is_profiling() ? monotonic_ns() : kOff) {}

WorkSpan::~WorkSpan() {
  if (start_ns_ == kOff) return;
  const int64_t num_ns = monotonic_ns() - start_ns_;
  const uint32_t thread = thread_of_events();
  const std::lock_guard<std::mutex> lock(spans().mutex);
  auto& finished = spans().finished;
  if (finished.size() < kMaxSpans) finished.push_back({work_, thread, start_ns_, num_ns});
}

std::vector<FinishedSpan> take_work_spans() {
  const std::lock_guard<std::mutex> lock(spans().mutex);
  return std::exchange(spans().finished, {});
}

}  // namespace paddle_ngraph
