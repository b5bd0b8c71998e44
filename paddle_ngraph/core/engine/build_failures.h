// Failures of builds in the background, until a run raises them.
#pragma once

#include <cstdint>
#include <exception>

#include "core/common/lru_cache.h"
#include "core/engine/function_cache.h"

namespace paddle_ngraph {

// Failures of one graph's builds, by key; thread-safe.
class BuildFailures {
 public:
  // Records that the function for this key cannot be built, nor any other function of the graph if
  // `is_for_all`.
  void record(const Signature& key, const std::exception_ptr& reason, bool is_for_all);

  // Throws the failure recorded for this key or for all keys, once. A failure from before a change
  // of the denylist is dropped.
  void rethrow(const Signature& key);

 private:
  struct Failure {
    std::exception_ptr reason;
    uint64_t version;  // denylist_version() when the build failed
    bool is_for_all;   // whether no function of the graph can be built, whatever the key
  };

  static constexpr size_t kMaxFailures = 16;

  LruCache<Signature, Failure, SignatureHash> failures_{kMaxFailures};
};

}  // namespace paddle_ngraph
