// The engines of the process, by graph.
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

// One engine for equal graph strings, for as long as it is in use; the latest are kept beyond that.
// Thread-safe.
class Engines {
 public:
  static constexpr size_t kMaxRetained = 256;

  static Engines& instance();

  // Throws NgraphError when the string is not a graph of this release.
  std::shared_ptr<NgraphEngine> of(const std::string& graph);

  // Drops every engine that is not in use.
  void clear();

  // How many engines there are.
  size_t size() const;

 private:
  using RecentList = std::list<std::pair<std::string, std::shared_ptr<NgraphEngine>>>;
  struct Entry {
    std::weak_ptr<NgraphEngine> engine;
    std::optional<RecentList::iterator> recent;  // where it is kept
  };

  std::shared_ptr<NgraphEngine> find(const std::string& key, const std::string& graph);
  // Keeps the engine of an entry as the latest; engines that are no longer kept go to `evicted`.
  void mark_recent(const std::string& key, const std::shared_ptr<NgraphEngine>& engine,
                   Entry* entry, RecentList* evicted);

  mutable ForkSafeMutex mutex_;
  RecentList recent_;  // most recently used in front
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace paddle_ngraph
