// Registry of the engines of the process, keyed by graph.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

class NgraphEngine;

// One engine per distinct graph string while it is in use; the kMaxRetained most recent engines are
// retained beyond that. Thread-safe.
class Engines {
 public:
  static constexpr size_t kMaxRetained = 256;

  static Engines& instance();

  // The engine of this graph string. Throws NgraphError if the string is not a graph of this
  // release.
  std::shared_ptr<NgraphEngine> of(const std::string& graph);

  // Drops every retained engine that nothing else refers to.
  void clear();

  // Number of engines that exist, retained or not.
  size_t size() const;

 private:
  using RecentList = std::list<std::pair<std::string, std::shared_ptr<NgraphEngine>>>;
  struct Entry {
    std::weak_ptr<NgraphEngine> engine;
    // Position of the engine in recent_; none if the engine is not retained.
    std::optional<RecentList::iterator> recent;
  };

  std::shared_ptr<NgraphEngine> find(const std::string& key, const std::string& graph);
  // Retains `engine` as the most recently used one. Moves engines beyond the maximum number of
  // retained ones to `evicted`, for destruction after the lock is released.
  void mark_recent(const std::string& key, const std::shared_ptr<NgraphEngine>& engine,
                   Entry* entry, RecentList* evicted);

  mutable ForkSafeMutex mutex_;
  RecentList recent_;  // engines that are retained, the most recently used one first
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace paddle_ngraph
