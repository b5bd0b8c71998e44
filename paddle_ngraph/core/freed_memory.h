// Memory that was freed.
#pragma once

namespace paddle_ngraph {

// Has the C library keep freed memory for the next run, up to 512 MiB at the end of its heap, where
// it gives it back to the system above some tens of MiB: a training step and a fed batch need the same
// blocks again, and new pages from the system are cleared first. Settings of the user's own in the
// environment (MALLOC_*_, GLIBC_TUNABLES) are left alone; nothing happens without glibc.
void keep_freed_memory();

}  // namespace paddle_ngraph
