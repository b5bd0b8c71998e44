#include "core/common/caches.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration* latest = nullptr;  // constant initialization: before any declaration

}  // namespace

CacheDeclaration::CacheDeclaration(const char* name, const char* values, const char* key,
                                   const char* bound, const char* cleared, void (*clear)(),
                                   size_t (*size)(), const char* file)
    : name(name),
      values(values),
      key(key),
      bound(bound),
      cleared(cleared),
      clear(clear),
      size(size),
      file(file),
      next(latest) {
  latest = this;
}

const CacheDeclaration* CacheDeclaration::first() { return latest; }

}  // namespace paddle_ngraph
