// Asks for memory before it is read. A run that has used all of the cache leaves what prepares the
// next one in memory: following many small objects one by one would wait for each of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ngraph {

constexpr size_t kCacheLine = 64;

// Hands the address of each line of the cache that an object is in to a function.
template <typename Function>
void for_each_line(const void* object, size_t num_bytes, Function function) {
  const auto begin = reinterpret_cast<uintptr_t>(object);
  for (uintptr_t line = begin / kCacheLine * kCacheLine; line < begin + num_bytes;
       line += kCacheLine) {
    function(line);
  }
}

// Nothing is read: what lies there by now may be something else, or nothing.
inline void prefetch(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

inline void prefetch(const void* object, size_t num_bytes) {
  for_each_line(object, num_bytes, [](uintptr_t line) { prefetch(line); });
}

}  // namespace paddle_ngraph
