// Prefetches memory before it is read. After a run that has used the whole cache, the data that
// prepare the next run are in main memory: following many small objects one by one would wait for
// each of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ngraph {

constexpr size_t kCacheLine = 64;

// Calls a function with the address of each cache line of an object.
template <typename Function>
void for_each_line(const void* object, size_t num_bytes, Function function) {
  const auto begin = reinterpret_cast<uintptr_t>(object);
  for (uintptr_t line = begin / kCacheLine * kCacheLine; line < begin + num_bytes;
       line += kCacheLine) {
    function(line);
  }
}

// Prefetches the cache line at `address`. Reads nothing: the memory may have other contents by now,
// or be unmapped.
inline void prefetch(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

inline void prefetch(const void* object, size_t num_bytes) {
  for_each_line(object, num_bytes, [](uintptr_t line) { prefetch(line); });
}

}  // namespace paddle_ngraph
