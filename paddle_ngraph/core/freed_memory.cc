#include "freed_memory.h"

#include <cstdlib>
#include <initializer_list>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace paddle_ngraph {

#ifdef __GLIBC__

void keep_freed_memory() {
  constexpr int kMiB = 1 << 20;
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}) {
    if (std::getenv(name) != nullptr) return;
  }
  // Blocks above the second threshold come from the system one by one and go back when freed.
  mallopt(M_TRIM_THRESHOLD, 512 * kMiB);
  // Older releases of glibc refuse more than 32 MiB.
  if (mallopt(M_MMAP_THRESHOLD, 64 * kMiB) == 0) mallopt(M_MMAP_THRESHOLD, 32 * kMiB);
}

#else

void keep_freed_memory() {}

#endif

}  // namespace paddle_ngraph
