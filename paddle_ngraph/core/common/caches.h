// Declarations of the caches of the core: _core.caches() returns them, docs/reference/caches.md
// lists them, and clear_cache() empties them.
#pragma once

#include <cstddef>

namespace paddle_ngraph {

// Declares a cache, for docs/reference/caches.md and clear_cache(): a static object in the source
// of the cache. Only pointers to literals, since both libraries of the core declare caches
// (core/ov/ov_function.h).
class CacheDeclaration {
 public:
  // Declares a cache that clear_cache() does not empty: one of each object of some kind, or one
  // that is cleared in another way. `reason`: why the cache is not an LruMap or LruCache, if so.
  CacheDeclaration(const char* name, const char* values, const char* key, const char* bound,
                   const char* cleared, const char* reason = "",
                   const char* file = __builtin_FILE())
      : CacheDeclaration(name, values, key, bound, cleared, nullptr, nullptr, reason, file) {}

  // Declares a cache of the process that clear_cache() empties; `size` may be nullptr.
  CacheDeclaration(const char* name, const char* values, const char* key, const char* bound,
                   void (*clear)(), size_t (*size)(), const char* reason = "",
                   const char* file = __builtin_FILE())
      : CacheDeclaration(name, values, key, bound, "clear_cache()", clear, size, reason, file) {}

  CacheDeclaration(const CacheDeclaration&) = delete;
  CacheDeclaration& operator=(const CacheDeclaration&) = delete;

  const char* const name;
  const char* const values;
  const char* const key;
  const char* const bound;
  const char* const cleared;  // how, or by which call, the cache is cleared
  void (*const clear)();      // nullptr: clear_cache() does not empty the cache
  size_t (*const size)();     // nullptr: the size is not reported
  const char* const reason;
  const char* const file;
  const CacheDeclaration* const next;  // next element of the linked list of all declarations

  // Head of the linked list of all cache declarations of the process.
  static const CacheDeclaration* first();

 private:
  CacheDeclaration(const char* name, const char* values, const char* key, const char* bound,
                   const char* cleared, void (*clear)(), size_t (*size)(), const char* reason,
                   const char* file);
};

}  // namespace paddle_ngraph
