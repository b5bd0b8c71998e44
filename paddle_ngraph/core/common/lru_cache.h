// LRU cache of values that can be computed again.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <mutex>
#include <utility>

namespace paddle_ngraph {

// At most `bound` values. Thread-safe; a value is created once, while other threads wait. Each
// cache needs a CacheDeclaration.
template <typename Key, typename Value>
class LruCache {
 public:
  explicit LruCache(size_t bound) : bound_(bound) {}

  // The value, which becomes the most recently used one; a new one by `create()` if there is none.
  template <typename Create>
  Value get_or_create(const Key& key, Create create) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) {
      values_.splice(values_.begin(), values_, found->second);
      return found->second->second;
    }
    values_.emplace_front(key, create());
    index_.emplace(key, values_.begin());
    if (values_.size() > bound_) {
      index_.erase(values_.back().first);
      values_.pop_back();
    }
    return values_.front().second;
  }

 private:
  using Values = std::list<std::pair<Key, Value>>;  // the values, the most recently used one first

  const size_t bound_;
  std::mutex mutex_;
  Values values_;
  std::map<Key, typename Values::iterator> index_;
};

}  // namespace paddle_ngraph
