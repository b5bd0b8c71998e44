// Asks for memory before it is read. A run that has used all of the cache leaves what prepares the
// next one in memory: following many small objects one by one would wait for each of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ngraph {

constexpr size_t kCacheLine = 64;

// The address of the line of the cache that something begins in.
inline uintptr_t line_of(const void* object) {
  return reinterpret_cast<uintptr_t>(object) / kCacheLine * kCacheLine;
}

// Nothing is read: what lies there by now may be something else, or nothing.
inline void prefetch(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

// The lines of the cache that an object is in.
inline void prefetch(const void* object, size_t num_bytes) {
  const uintptr_t end = reinterpret_cast<uintptr_t>(object) + num_bytes;
  for (uintptr_t at = line_of(object); at < end; at += kCacheLine) prefetch(at);
}

}  // namespace paddle_ngraph
