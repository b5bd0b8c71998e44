#include "core/engine/build_failures.h"

#include <algorithm>

#include "core/engine/model_builder.h"

namespace paddle_ngraph {

namespace {

constexpr size_t kMaxFailures = 16;

}  // namespace

void BuildFailures::record(const Signature& key, const std::exception_ptr& reason,
                           bool is_for_all) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failures_.size() == kMaxFailures) failures_.erase(failures_.begin());
  failures_.push_back({key, reason, denylist_version(), is_for_all});
}

void BuildFailures::rethrow(const Signature& key) {
  std::exception_ptr reason;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& each) {
      return each.is_for_all || each.key == key;
    });
    if (found == failures_.end()) return;
    if (found->version == denylist_version()) reason = found->reason;
    failures_.erase(found);
  }
  if (reason != nullptr) std::rethrow_exception(reason);
}

}  // namespace paddle_ngraph
