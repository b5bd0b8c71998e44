// Random bytes of the system, for keys.
#pragma once

#include <cstddef>

namespace paddle_ngraph {

// Throws NgraphError if the system has none.
void fill_with_random_bytes(void* data, size_t num_bytes);

}  // namespace paddle_ngraph
