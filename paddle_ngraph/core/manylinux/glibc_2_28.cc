// Functions of glibc and libstdc++ that are newer than manylinux_2_28, for wheels that are compiled
// with the headers of a newer system and linked against stubs of glibc 2.28 (tools/wheels.py).
//
// Each has hidden visibility, so that the core uses its own and other libraries are not affected;
// the names are those that the compiler gives to the functions of libstdc++.
#include <condition_variable>
#include <ios>
#include <mutex>
#include <new>
#include <stdexcept>

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#define NGRAPH_HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32: whether the process has had only one thread so far; false is always right.
extern "C" NGRAPH_HIDDEN const char ngraph_single_threaded __asm__("__libc_single_threaded");
extern "C" const char ngraph_single_threaded = 0;

// glibc 2.30: the system's function, if there is one. Otherwise a wait until a time of the
// monotonic clock is one for the rest of the time by the real-time clock, which may wake up at
// another time if that clock is set meanwhile; callers check the time.
extern "C" NGRAPH_HIDDEN int ngraph_clockwait(
    pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
    const timespec* end) __asm__("pthread_cond_clockwait");
extern "C" int ngraph_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                const timespec* end) {
  using Wait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto of_system = reinterpret_cast<Wait*>(dlsym(RTLD_NEXT, "pthread_cond_clockwait"));
  if (of_system != nullptr) return of_system(condition, mutex, clock, end);
  constexpr int64_t kNanoseconds = 1000000000;
  timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const int64_t sum = int64_t{real.tv_nsec} + end->tv_nsec - now.tv_nsec + kNanoseconds;
  real.tv_sec += end->tv_sec - now.tv_sec + sum / kNanoseconds - 1;
  real.tv_nsec = sum % kNanoseconds;
  return pthread_cond_timedwait(condition, mutex, &real);
}

// GLIBCXX_3.4.30; older versions of the function are equal.
extern "C" NGRAPH_HIDDEN void
ngraph_wait(std::condition_variable*, std::unique_lock<std::mutex>*) __asm__(
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
extern "C" void ngraph_wait(std::condition_variable* condition,
                            std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}

// GLIBCXX_3.4.26: a move, which may copy, since the text of an error is shared.
extern "C" NGRAPH_HIDDEN void ngraph_move_error(std::runtime_error*, std::runtime_error*) __asm__(
    "_ZNSt13runtime_errorC2EOS_");
extern "C" void ngraph_move_error(std::runtime_error* target, std::runtime_error* source) {
  const std::runtime_error& original = *source;
  new (target) std::runtime_error(original);
}

// GLIBCXX_3.4.26: a stream of text of the older ABI, for which releases of OpenVINO before 2026 are
// compiled. The older constructor takes the mode, whose default was out.
extern "C" void ngraph_stream_with_mode(void* stream, std::ios_base::openmode mode) __asm__(
    "_ZNSt19basic_ostringstreamIcSt11char_traitsIcESaIcEEC1ESt13_Ios_Openmode");
extern "C" NGRAPH_HIDDEN void ngraph_stream(void* stream) __asm__(
    "_ZNSt19basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
extern "C" void ngraph_stream(void* stream) { ngraph_stream_with_mode(stream, std::ios_base::out); }
