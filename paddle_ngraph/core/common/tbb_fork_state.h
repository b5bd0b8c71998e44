// State of TBB across forks: a forked process has none of TBB's threads.
#pragma once

namespace paddle_ngraph {

// Records that TBB is about to compute in this process, which creates its threads.
void mark_tbb_started();

// Whether the process was forked from one in which TBB had computed. TBB still counts the threads
// of the parent, whose slots are never released: a request for a slot may block forever.
bool are_tbb_threads_lost();

}  // namespace paddle_ngraph
