// LruMap, and LruCache, which adds a bound and a lock: every cache in the core's memory is one of
// the two, and has a CacheDeclaration.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace paddle_ngraph {

// Map whose entries are ordered by their last use. The owner locks a mutex around each call, and
// evicts. Removed entries are returned: the owner frees them after it has unlocked the mutex, since
// their destructors may be slow or lock other mutexes. Keys are indexed by `Hash`, or by operator<
// if `Hash` is void.
template <typename Key, typename Value, typename Hash = void>
class LruMap {
 public:
  struct Entry {
    Key key;
    Value value;
    size_t bytes;  // size of the value, if the owner bounds the sum
  };
  using Entries = std::list<Entry>;

  LruMap() = default;
  LruMap(const LruMap&) = delete;
  LruMap& operator=(const LruMap&) = delete;

  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }

  // The most recently used entry first.
  const Entries& entries() const { return entries_; }

  // The value, whose entry becomes the most recently used one; nullptr if there is none.
  Value* find(const Key& key) {
    const auto found = index_.find(key);
    return found == index_.end() ? nullptr : mark_used(found->second);
  }

  // The value of the first entry for which `predicate(entry)` is true, as find() returns it.
  template <typename Predicate>
  Value* find_if(const Predicate& predicate) {
    const auto found = std::find_if(entries_.begin(), entries_.end(), predicate);
    return found == entries_.end() ? nullptr : mark_used(found);
  }

  // Adds the most recently used entry. The map has none for the key.
  Value& add(Key key, Value value, size_t bytes = 0) {
    entries_.push_front({std::move(key), std::move(value), bytes});
    index_.emplace(entries_.front().key, entries_.begin());
    bytes_ += bytes;
    return entries_.front().value;
  }

  // Removes the entries for which `predicate(entry)` is true.
  template <typename Predicate>
  Entries remove_if(const Predicate& predicate) {
    Entries removed;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (predicate(*entry)) move(entry, &removed);
      entry = next;
    }
    return removed;
  }

  Entries clear() {
    index_.clear();
    bytes_ = 0;
    return std::exchange(entries_, {});
  }

  // Removes the least recently used entries, except for `bound` entries.
  Entries evict_beyond(size_t bound) {
    Entries removed;
    while (size() > bound) move(std::prev(entries_.end()), &removed);
    return removed;
  }

  // Removes the least recently used entries that have bytes, until the sum is at most `bound`, or
  // until only the most recently used entry is left.
  Entries evict_to_bytes(size_t bound) {
    Entries removed;
    for (auto entry = entries_.end(); bytes_ > bound && --entry != entries_.begin();) {
      if (entry->bytes > 0) move(entry++, &removed);
    }
    return removed;
  }

 private:
  using Iterator = typename Entries::iterator;
  using KeyReference = std::reference_wrapper<const Key>;  // to the key of an entry
  using OrderedIndex = std::map<KeyReference, Iterator, std::less<Key>>;
  using HashedIndex = std::unordered_map<KeyReference, Iterator, Hash, std::equal_to<Key>>;

  Value* mark_used(Iterator entry) {
    entries_.splice(entries_.begin(), entries_, entry);
    return &entry->value;
  }

  void move(Iterator entry, Entries* removed) {
    index_.erase(entry->key);
    bytes_ -= entry->bytes;
    removed->splice(removed->begin(), entries_, entry);
  }

  Entries entries_;
  std::conditional_t<std::is_void_v<Hash>, OrderedIndex, HashedIndex> index_;
  size_t bytes_ = 0;
};

// Thread-safe LRU cache with at most `bound` entries. Lookups copy the value, since another thread
// may evict it. Removed values are freed without the lock.
template <typename Key, typename Value, typename Hash = void, typename Mutex = std::mutex>
class LruCache {
 public:
  using Entries = typename LruMap<Key, Value, Hash>::Entries;

  explicit LruCache(size_t bound) : bound_(bound) {}

  size_t size() const {
    std::lock_guard<Mutex> lock(mutex_);
    return map_.size();
  }

  // The most recently used entry first.
  Entries entries() const {
    std::lock_guard<Mutex> lock(mutex_);
    return map_.entries();
  }

  // The value, whose entry becomes the most recently used one.
  std::optional<Value> find(const Key& key) {
    std::lock_guard<Mutex> lock(mutex_);
    const Value* const found = map_.find(key);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }

  // The value; a new one by `create()` if there is none. Other threads wait meanwhile.
  template <typename Create>
  Value get_or_create(const Key& key, const Create& create) {
    Entries evicted;
    std::lock_guard<Mutex> lock(mutex_);
    if (const Value* const found = map_.find(key)) return *found;
    Value created = map_.add(key, create());
    evicted = map_.evict_beyond(bound_);
    return created;
  }

  // Adds or replaces a value.
  void put(Key key, Value value) {
    Entries evicted;
    std::lock_guard<Mutex> lock(mutex_);
    if (Value* const found = map_.find(key)) return std::swap(*found, value);
    map_.add(std::move(key), std::move(value));
    evicted = map_.evict_beyond(bound_);
  }

  // Removes and returns the entries for which `predicate(entry)` is true.
  template <typename Predicate>
  Entries remove_if(const Predicate& predicate) {
    std::lock_guard<Mutex> lock(mutex_);
    return map_.remove_if(predicate);
  }

  void clear() {
    Entries removed;
    std::lock_guard<Mutex> lock(mutex_);
    removed = map_.clear();
  }

 private:
  const size_t bound_;
  mutable Mutex mutex_;
  LruMap<Key, Value, Hash> map_;
};

}  // namespace paddle_ngraph
