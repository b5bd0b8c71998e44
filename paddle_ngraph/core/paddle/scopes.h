// Declares Paddle's Scope, for which Paddle's wheel has no header.
#pragma once

#include <cstdint>

namespace paddle::framework {

// Only the member that is called here, with the symbol that libpaddle exports.
class Scope {
 public:
  const Scope* root() const;
};

}  // namespace paddle::framework

namespace paddle_ngraph {

// The address of the outermost scope that encloses the scope at this address.
uintptr_t root_scope(uintptr_t scope);

}  // namespace paddle_ngraph
