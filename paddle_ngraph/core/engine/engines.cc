#include "core/engine/engines.h"

#include <iterator>

#include "core/common/caches.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_engine.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration engines_declaration(
    "engines", "engines", "graph header",
    "those in use, which clear_cache() retains, and the 256 most recent ones",
    [] { Engines::instance().clear(); }, [] { return Engines::instance().size(); });

}  // namespace

Engines& Engines::instance() {
  // The table of engines is never destroyed: an engine frees its functions, and the cache of these
  // is not destroyed at exit either.
  static Engines* const engines = std::make_unique<Engines>().release();
  return *engines;
}

std::shared_ptr<NgraphEngine> Engines::of(const std::string& graph) {
  // The key is the first line of the graph string alone: its digest of the rest identifies the
  // graph.
  const std::string key = graph.substr(0, graph.find('\n'));
  if (auto found = find(key, graph)) return found;
  verify_graph(graph);
  const auto made = std::make_shared<NgraphEngine>(graph);
  std::shared_ptr<NgraphEngine> engine;
  // Declared before the lock: engines, which free their functions, are freed after its release.
  RecentList evicted;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    entry = entry->second.engine.expired() ? entries_.erase(entry) : std::next(entry);
  }
  auto& entry = entries_[key];
  // Another thread may have created an engine for the graph since find(), and may drop it at any
  // time: the reference is acquired before the check.
  engine = entry.engine.lock();
  if (engine == nullptr) entry.engine = engine = made;
  mark_recent(key, engine, &entry, &evicted);
  return engine;
}

std::shared_ptr<NgraphEngine> Engines::find(const std::string& key, const std::string& graph) {
  std::shared_ptr<NgraphEngine> engine;
  RecentList evicted;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  engine = found->second.engine.lock();
  if (engine == nullptr || engine->graph().size() != graph.size()) return nullptr;
  mark_recent(key, engine, &found->second, &evicted);
  return engine;
}

void Engines::mark_recent(const std::string& key, const std::shared_ptr<NgraphEngine>& engine,
                          Entry* entry, RecentList* evicted) {
  if (entry->recent) {
    recent_.splice(recent_.begin(), recent_, *entry->recent);
    return;
  }
  recent_.emplace_front(key, engine);
  entry->recent = recent_.begin();
  if (recent_.size() <= kMaxRetained) return;
  entries_.at(recent_.back().first).recent.reset();
  evicted->splice(evicted->begin(), recent_, std::prev(recent_.end()));
}

void Engines::clear() {
  RecentList evicted;
  std::lock_guard<std::mutex> lock(mutex_);
  evicted.swap(recent_);
  for (auto& [key, entry] : entries_) entry.recent.reset();
}

size_t Engines::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& [key, entry] : entries_) count += entry.engine.expired() ? 0 : 1;
  return count;
}

}  // namespace paddle_ngraph
