// What tests need of our own operators, on any machine.
#pragma once

#include <vector>

namespace paddle_ngraph {

// The names of all of them, as in the table in extension_ops.cc.
std::vector<const char*> own_operators();

// Calls function(data). Operators evaluated in it split their work among this many threads, even if
// there are fewer cores.
void with_threads(int threads, void (*function)(void*), void* data);

}  // namespace paddle_ngraph
