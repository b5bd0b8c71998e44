// The engines of the process, keyed by graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/common/fork_safe_mutex.h"
#include "core/common/lru_cache.h"

namespace paddle_ngraph {

class NgraphEngine;

// One engine per distinct graph string. The kMaxRetained most recently used engines are retained,
// others live as long as they are in use. Thread-safe.
class Engines {
 public:
  static constexpr size_t kMaxRetained = 256;

  static Engines& instance();

  // The engine of this graph string. Throws NgraphError if the string is not a graph of this
  // release.
  std::shared_ptr<NgraphEngine> of(const std::string& graph);

  // Drops every retained engine that nothing else refers to.
  void clear();

  // The graph strings of those of these subgraphs that have an engine, with their ids.
  std::vector<std::pair<uint64_t, std::string>> graphs_of(const std::set<uint64_t>& ids) const;

  // Number of engines that exist, retained or not.
  size_t size() const;

 private:
  using RetainedEngines =
      LruMap<std::string, std::shared_ptr<NgraphEngine>, std::hash<std::string>>;

  // The live engine for the key, which is retained; nullptr if there is none.
  std::shared_ptr<NgraphEngine> find(const std::string& key, RetainedEngines::Entries* evicted);

  mutable ForkSafeMutex mutex_;
  RetainedEngines retained_;
  std::unordered_map<std::string, std::weak_ptr<NgraphEngine>> live_;  // a registry, not a cache
};

}  // namespace paddle_ngraph
