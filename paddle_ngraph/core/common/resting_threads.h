// Whether the other threads of the process sleep.
#pragma once

#include <chrono>

namespace paddle_ngraph {

// Waits until all other threads of the process sleep, at most for `limit`; returns whether they do.
// A thread that sleeps holds no lock of a library, unless it waits for another thread that holds
// one, which then does not sleep. The proof needs two looks at each thread: both times it sleeps,
// and has not run between them, so that all of them slept at the moment between the looks.
bool other_threads_rest(std::chrono::milliseconds limit);

}  // namespace paddle_ngraph
