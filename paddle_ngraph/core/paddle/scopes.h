// Paddle's scopes, for which its wheel has no header.
#pragma once

#include <cstdint>

namespace paddle::framework {

// The members of Paddle's class that are called here, as libpaddle exports them.
class Scope {
 public:
  const Scope* root() const;
};

}  // namespace paddle::framework

namespace paddle_ngraph {

// The address of the outermost scope around the one at `scope`.
uintptr_t root_scope(uintptr_t scope);

}  // namespace paddle_ngraph
