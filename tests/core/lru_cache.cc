// Tests of core/common/lru_cache.h. Prints the line of a failed check, and exits with 1.
#include "core/common/lru_cache.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

using paddle_ngraph::LruCache;
using paddle_ngraph::LruMap;

namespace {

void check(bool holds, const char* condition, int line) {
  if (holds) return;
  std::printf("line %d: %s\n", line, condition);
  std::exit(1);
}

#define CHECK(condition) check(condition, #condition, __LINE__)

// The keys, the most recently used first.
template <typename Entries>
std::vector<int> keys(const Entries& entries) {
  std::vector<int> found;
  for (const auto& entry : entries) found.push_back(entry.key);
  return found;
}

// Compares random uses of a map with those of a vector of its keys.
template <typename Hash>
void compare_with_model() {
  std::mt19937 random(1);
  LruMap<int, int, Hash> map;
  std::vector<int> model;  // the most recently used first
  const auto mark_used = [&](int key) {
    model.erase(std::remove(model.begin(), model.end(), key), model.end());
    model.insert(model.begin(), key);
  };
  for (int step = 0; step < 20000; ++step) {
    const int key = static_cast<int>(random() % 12);
    const bool has_key = std::count(model.begin(), model.end(), key) > 0;
    switch (random() % 8) {
      case 0:
        CHECK(keys(map.evict_beyond(5)).size() == (model.size() > 5 ? model.size() - 5 : 0));
        if (model.size() > 5) model.resize(5);
        break;
      case 1:
        map.remove_if([&](const auto& entry) { return entry.key == key; });
        model.erase(std::remove(model.begin(), model.end(), key), model.end());
        break;
      case 2: {
        const auto* found = map.find_if([&](const auto& entry) { return entry.value == -key; });
        CHECK((found != nullptr) == has_key);
        if (has_key) mark_used(key);
        break;
      }
      default: {
        const int* found = map.find(key);
        CHECK((found != nullptr) == has_key);
        if (has_key) CHECK(*found == -key);
        if (!has_key) CHECK(map.add(key, -key, key) == -key);
        mark_used(key);
      }
    }
    CHECK(keys(map.entries()) == model);
    CHECK(map.size() == model.size());
    size_t bytes = 0;
    for (int each : model) bytes += each;
    CHECK(map.bytes() == bytes);
  }
  CHECK(keys(map.clear()) == model);
  CHECK(map.size() == 0 && map.bytes() == 0 && map.find(1) == nullptr);
}

void test_a_bound_in_bytes() {
  LruMap<int, int> map;
  CHECK(map.evict_to_bytes(0).empty());
  for (int key = 0; key < 6; ++key) map.add(key, 0, key % 2 == 0 ? 10 : 0);
  CHECK(map.evict_to_bytes(30).empty());
  CHECK(keys(map.evict_to_bytes(25)) == std::vector<int>({0}));
  CHECK(map.bytes() == 20);
  // Entries without bytes stay, and the most recently used entry does.
  map.add(6, 0, 100);
  map.evict_to_bytes(50);
  CHECK(keys(map.entries()) == std::vector<int>({6, 5, 3, 1}));
  CHECK(map.bytes() == 100);
}

void test_cache() {
  LruCache<std::string, int> cache(2);
  CHECK(!cache.find("a"));
  cache.put("a", 1);
  cache.put("b", 2);
  cache.put("a", 3);  // replaces the value
  CHECK(cache.size() == 2);
  CHECK(cache.get_or_create("c", [] { return 4; }) == 4);
  CHECK(cache.get_or_create("a", [] { return 5; }) == 3);
  CHECK(!cache.find("b"));
  CHECK(cache.find("c") == 4);
  CHECK(cache.entries().front().key == "c" && cache.entries().back().key == "a");
  CHECK(cache.remove_if([](const auto& entry) { return entry.value == 4; }).size() == 1);
  CHECK(cache.size() == 1);
  cache.clear();
  CHECK(cache.size() == 0);
  try {
    cache.get_or_create("a", []() -> int { throw 1; });
    CHECK(false);
  } catch (int) {
    CHECK(cache.size() == 0);
  }
}

// A mutex that knows whether it is locked.
struct CheckedMutex {
  static inline bool is_locked = false;
  void lock() { is_locked = true; }
  void unlock() { is_locked = false; }
};

// Checks in its destructor that the cache is not locked.
struct Value {
  ~Value() {
    CHECK(!CheckedMutex::is_locked);
    ++num_freed;
  }
  static inline int num_freed = 0;
};

void test_values_are_freed_without_the_lock() {
  LruCache<int, std::shared_ptr<Value>, std::hash<int>, CheckedMutex> cache(2);
  for (int key : {0, 1, 2, 2}) cache.put(key, std::make_shared<Value>());
  cache.get_or_create(3, [] { return std::make_shared<Value>(); });
  CHECK(Value::num_freed == 3);
  cache.remove_if([](const auto& entry) { return entry.key == 3; });
  cache.clear();
  CHECK(Value::num_freed == 5);
}

void test_threads() {
  LruCache<int, std::shared_ptr<int>, std::hash<int>> cache(8);
  LruCache<int, int> single(1);
  std::atomic<int> created{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(number);
      for (int step = 0; step < 20000; ++step) {
        const int key = static_cast<int>(random() % 16);
        const auto found =
            step % 3 == 0 ? cache.find(key).value_or(nullptr)
                          : cache.get_or_create(key, [&] { return std::make_shared<int>(key); });
        CHECK(found == nullptr || *found == key);
        if (step % 100 == 0) cache.clear();
        CHECK(single.get_or_create(0, [&] { return ++created; }) == 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(cache.size() <= 8 && created == 1);
}

}  // namespace

int main() {
  compare_with_model<void>();
  compare_with_model<std::hash<int>>();
  test_a_bound_in_bytes();
  test_cache();
  test_values_are_freed_without_the_lock();
  test_threads();
}
