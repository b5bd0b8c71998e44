#include "core/engine/thread_sharing.h"

#include <algorithm>
#include <cstdint>

#include "core/common/threads.h"
#include "core/engine/engine_settings.h"

namespace paddle_ngraph {

Settings ThreadSharing::shared(const Settings& settings, const Concurrency::Run& run) const {
  if (!is_enabled_ || settings.streams > 1 || run.streams(2) == 1) return settings;
  const int each = threads_of(settings), most = std::max(each, usable_cores());
  Settings shared = settings;
  shared.streams = run.streams(most);
  if (const int64_t all = int64_t{each} * shared.streams; each < most) {
    shared.num_threads = static_cast<int>(std::min<int64_t>(all, most));
  }
  return shared;
}

}  // namespace paddle_ngraph
