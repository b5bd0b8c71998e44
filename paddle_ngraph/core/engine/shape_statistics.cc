#include "core/engine/shape_statistics.h"

#include "core/common/caches.h"
#include "core/engine/engine_graph.h"
#include "core/engine/model_builder.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration static_functions_declaration(
    "static_functions", "counts of functions for one shape", "hash of the signature",
    "16 first shapes, 4,096 functions and 4,096 missed shapes for each engine",
    "a change of the denylist, or the end of the engine", "counts, which cannot be recomputed");

constexpr size_t kMaxStaticShapes = 16;
constexpr size_t kFunctionsPerMiss = 4;

// Maximum number of shapes for which misses are counted.
constexpr size_t kMaxTrackedShapes = 4096;

}  // namespace

ShapeStatistics::Counts& ShapeStatistics::counts() {
  if (counts_.version != denylist_version()) counts_ = {denylist_version(), 0, {}, {}, {}};
  return counts_;
}

ShapeStatistics::Frequency ShapeStatistics::count_miss(const Signature& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  Counts& now = counts();
  // Whether the shape had a function before: the cache may have evicted it for lack of capacity.
  const bool was_built = now.built.count(SignatureHash()(key)) > 0;
  if (now.first_shapes.size() < kMaxStaticShapes && !was_built) return Frequency::kFrequent;
  const uint64_t shape = shape_hash(key);
  const bool is_new = now.built.size() < kMaxTrackedShapes && !was_built;
  if (is_new && now.first_shapes.count(shape) > 0) {
    return Frequency::kFrequent;  // the shape has a function already, with other settings
  }
  if (now.misses.size() >= kMaxTrackedShapes) now.misses.clear();
  if (++now.misses[shape] * kFunctionsPerMiss >= now.count) return Frequency::kFrequent;
  return is_new ? Frequency::kSeldomAndNew : Frequency::kSeldom;
}

void ShapeStatistics::count_function(const Signature& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  Counts& now = counts();
  const uint64_t shape = shape_hash(key);
  ++now.count;
  now.misses.erase(shape);
  if (now.built.size() < kMaxTrackedShapes) now.built.insert(SignatureHash()(key));
  if (now.first_shapes.size() < kMaxStaticShapes) now.first_shapes.insert(shape);
}

void ShapeStatistics::mark_frequent(const Signature& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  Counts& now = counts();
  now.misses[shape_hash(key)] = now.count;
}

void ShapeStatistics::forget(const Signature& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  Counts& now = counts();
  now.built.erase(SignatureHash()(key));
  now.misses[shape_hash(key)] = now.count;
}

void ShapeStatistics::forget_built() {
  std::lock_guard<std::mutex> lock(mutex_);
  counts().built.clear();
}

}  // namespace paddle_ngraph
