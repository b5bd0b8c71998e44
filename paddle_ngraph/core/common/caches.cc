#include "core/common/caches.h"

namespace paddle_ngraph {

namespace {

// The last constructed declaration, the head of the list. Initialized at compile time, because
// declarations in other sources may be constructed earlier than the static objects of this one.
const CacheDeclaration* latest = nullptr;

}  // namespace

CacheDeclaration::CacheDeclaration(const char* name, const char* values, const char* key,
                                   const char* bound, const char* cleared, void (*clear)(),
                                   size_t (*size)(), const char* reason, const char* file)
    : name(name),
      values(values),
      key(key),
      bound(bound),
      cleared(cleared),
      clear(clear),
      size(size),
      reason(reason),
      file(file),
      next(latest) {
  latest = this;
}

const CacheDeclaration* CacheDeclaration::first() { return latest; }

}  // namespace paddle_ngraph
