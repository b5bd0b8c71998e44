#include "core/paddle/scopes.h"

namespace paddle_ngraph {

uintptr_t root_scope(uintptr_t scope) {
  // Python passes the address of a scope as an integer.
  const auto* found = reinterpret_cast<const paddle::framework::Scope*>(scope);
  return reinterpret_cast<uintptr_t>(found->root());
}

}  // namespace paddle_ngraph
