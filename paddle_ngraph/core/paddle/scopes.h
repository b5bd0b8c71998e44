// Scopes of Paddle: its wheel brings no header of them.
#pragma once

#include <cstdint>

namespace paddle::framework {

// What is called here of Paddle's class, as libpaddle exports it.
class Scope {
 public:
  const Scope* root() const;
};

}  // namespace paddle::framework

namespace paddle_ngraph {

// The address of the outermost scope around the one at `scope`.
uintptr_t root_scope(uintptr_t scope);

}  // namespace paddle_ngraph
