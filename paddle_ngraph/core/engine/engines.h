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

  // Drops every engine that is not in use.
  void clear();

  // Number of live engines.
  size_t size() const;

 private:
  using RecentList = std::list<std::pair<std::string, std::shared_ptr<NgraphEngine>>>;
  struct Entry {
    std::weak_ptr<NgraphEngine> engine;
    // position of the engine in recent_, if it is retained
    std::optional<RecentList::iterator> recent;
  };

  std::shared_ptr<NgraphEngine> find(const std::string& key, const std::string& graph);
  // Retains the engine of an entry as the most recent one; engines no longer retained are moved to
  // `evicted`.
  void mark_recent(const std::string& key, const std::shared_ptr<NgraphEngine>& engine,
                   Entry* entry, RecentList* evicted);

  mutable ForkSafeMutex mutex_;
  RecentList recent_;  // retained engines, the most recently used first
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace paddle_ngraph
