// What tests ask of our own operators, on any machine.
#pragma once

#include <vector>

namespace paddle_ngraph {

// The names of all, as the table in extension_ops.cc has them.
std::vector<const char*> own_operators();

// Calls function(data). Operators evaluated in it share their work out to so many threads, though
// there may be fewer cores.
void with_threads(int threads, void (*function)(void*), void* data);

}  // namespace paddle_ngraph
