// Returns memory that a build has freed from the C library's heap to the system.
#pragma once

#ifdef __GLIBC__
#include <cstdlib>

#include <malloc.h>
#endif

namespace paddle_ngraph {

// Returns freed memory to the system. The C library retains freed memory below the top of its heap;
// after a build this memory contained the intermediate graphs of OpenVINO.
inline void trim_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Moves freed blocks out of the unsorted list of the heap. Each trim walks this list, to which
// every free adds, but skips the sorted lists of small blocks. Without this call before each trim,
// the time to free many functions grows with the square of their number.
inline void sort_free_memory() {
#ifdef __GLIBC__
  // Bytes: a smaller request may be served without sorting the list.
  constexpr size_t kSortingRequest = size_t{64} << 10;
  // Volatile, since compilers remove an allocation that is never used.
  void* volatile memory = std::malloc(kSortingRequest);
  std::free(memory);
#endif
}

}  // namespace paddle_ngraph
