#include "core/engine/engines.h"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "core/common/caches.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_engine.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration engines_declaration(
    "engines", "engines", "graph header", "256; engines in use live on",
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
  {
    RetainedEngines::Entries evicted;  // freed after the lock is released: engines free functions
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = find(key, &evicted);
    if (found != nullptr && found->graph().size() == graph.size()) return found;
  }
  verify_graph(graph);
  const auto made = std::make_shared<NgraphEngine>(graph);
  RetainedEngines::Entries evicted;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto engine = live_.begin(); engine != live_.end();) {
    engine = engine->second.expired() ? live_.erase(engine) : std::next(engine);
  }
  // Another thread may have created an engine for the graph meanwhile.
  if (auto found = find(key, &evicted)) return found;
  live_[key] = made;
  return find(key, &evicted);
}

std::shared_ptr<NgraphEngine> Engines::find(const std::string& key,
                                            RetainedEngines::Entries* evicted) {
  if (const auto* const retained = retained_.find(key)) return *retained;
  const auto live = live_.find(key);
  auto engine = live == live_.end() ? nullptr : live->second.lock();
  if (engine == nullptr) return nullptr;
  retained_.add(key, engine);
  *evicted = retained_.evict_beyond(kMaxRetained);
  return engine;
}

void Engines::clear() {
  RetainedEngines::Entries removed;
  std::lock_guard<std::mutex> lock(mutex_);
  removed = retained_.clear();
}

std::vector<std::pair<uint64_t, std::string>> Engines::graphs_of(
    const std::set<uint64_t>& ids) const {
  std::vector<std::shared_ptr<NgraphEngine>> engines;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, engine] : live_) engines.push_back(engine.lock());
  }
  std::vector<std::pair<uint64_t, std::string>> graphs;
  for (const auto& engine : engines) {
    if (engine == nullptr || ids.count(engine->subgraph_id()) == 0) continue;
    graphs.emplace_back(engine->subgraph_id(), engine->graph());
  }
  return graphs;
}

size_t Engines::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<size_t>(std::count_if(
      live_.begin(), live_.end(), [](const auto& entry) { return !entry.second.expired(); }));
}

}  // namespace paddle_ngraph
