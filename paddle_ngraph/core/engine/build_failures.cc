#include "core/engine/build_failures.h"

#include "core/common/caches.h"
#include "core/engine/model_builder.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration failures_declaration(
    "failures", "errors of builds in the background, until a run raises them", "signature",
    "16 for each engine", "a change of the denylist, or the end of the engine");

}  // namespace

void BuildFailures::record(const Signature& key, const std::exception_ptr& reason,
                           bool is_for_all) {
  failures_.put(key, {reason, denylist_version(), is_for_all});
}

void BuildFailures::rethrow(const Signature& key) {
  const auto raised = failures_.remove_if(
      [&](const auto& entry) { return entry.value.is_for_all || entry.key == key; });
  for (const auto& [_, failure, bytes] : raised) {
    if (failure.version == denylist_version()) std::rethrow_exception(failure.reason);
  }
}

}  // namespace paddle_ngraph
