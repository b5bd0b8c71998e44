// Release of memory that a build has freed.
#pragma once

#ifdef __GLIBC__
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

}  // namespace paddle_ngraph
