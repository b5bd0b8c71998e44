// Threads that compute do not come along when the process forks.
#pragma once

namespace paddle_ngraph {

// TBB is about to compute in this process.
void mark_tbb_started();

// Whether this process was forked from one in which TBB had computed. TBB still counts the threads
// that it had there, and places that those had taken are never free again: who asks for one may
// wait for ever.
bool are_tbb_threads_lost();

}  // namespace paddle_ngraph
