// What a build leaves behind.
#pragma once

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace paddle_ngraph {

// Returns freed memory to the system. The C library keeps what is freed below the top of its heap,
// which after a build are the graphs that OpenVINO went through.
inline void trim_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace paddle_ngraph
