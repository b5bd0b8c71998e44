#include "mkl_packed/stragglers.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <omp.h>

#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// A step is late if it takes longer than kMinLateNs + kLateFactor * the fastest step's time.
constexpr int64_t kMinLateNs = 500'000;
constexpr int64_t kLateFactor = 8;

// After a late step, a single thread computes for kSingleThreadFactor times the duration of that
// step; if threads are late again soon after, for at least twice the previous time; but for
// kMaxSingleThreadNs at most.
constexpr int64_t kSingleThreadFactor = 2, kMaxSingleThreadNs = 1'600'000'000;

int64_t now() { return nanoseconds(Clock::now().time_since_epoch()).count(); }

std::atomic<int64_t> single_thread_until{0};
std::atomic<int64_t> single_thread_ns{0};

// The shortest time that a step has taken so far, for some step keys. Not locked: losing a time, or
// reading that of another key, costs some time but affects no result.
struct Fastest {
  std::atomic<uint64_t> step_key{0};
  std::atomic<int64_t> time{0};
};
std::array<Fastest, 64> all_fastest;

Fastest& fastest_slot(uint64_t step_key) { return all_fastest[step_key >> 58]; }

// A key that steps of equal expected duration share: it contains the sizes of the matmul, the
// number of threads, and the library, which differs for operands in bfloat16.
uint64_t make_step_key(const MatmulSizes& matmul, const GemmProvider& gemm) {
  uint64_t step_key = 0;
  const auto mix = [&](uint64_t each) { step_key = (step_key ^ each) * 0x9e3779b97f4a7c15u; };
  for (const int64_t size : {matmul.m, matmul.n, matmul.k}) mix(static_cast<uint64_t>(size));
  mix(static_cast<uint64_t>(num_omp_threads()));
  mix(reinterpret_cast<uintptr_t>(&gemm));
  return step_key;
}

// The shortest measured time of a step with this key. Before the first one, an upper bound: a
// nanosecond for each floating-point operation.
int64_t fastest_ns(uint64_t step_key, const MatmulSizes& matmul) {
  const Fastest& known = fastest_slot(step_key);
  return known.step_key == step_key ? known.time.load() : matmul.flops();
}

void note_straggler(int64_t taken) {
  const int64_t time = now(), before = single_thread_ns;
  const bool is_soon = time < single_thread_until + 4 * before;
  single_thread_ns =
      std::min(std::max(kSingleThreadFactor * taken, is_soon ? 2 * before : 0), kMaxSingleThreadNs);
  single_thread_until = time + single_thread_ns;
}

}  // namespace

bool is_straggling() { return now() < single_thread_until; }

void run_single_threaded_for(nanoseconds time) { single_thread_until = now() + time.count(); }

StepTimer::StepTimer(const MatmulSizes& matmul, const GemmProvider& gemm)
    : step_key_(make_step_key(matmul, gemm)),
      is_parallel_(num_omp_threads() > 1),
      fastest_(fastest_ns(step_key_, matmul)),
      last_(Clock::now()) {}

StepTimer::~StepTimer() {
  if (!is_parallel_) return;
  Fastest& known = fastest_slot(step_key_);
  known.time = fastest_;
  known.step_key = step_key_;
}

bool StepTimer::has_straggler() {
  if (!is_parallel_) return false;
  const auto time = Clock::now();
  const int64_t taken = nanoseconds(time - last_).count();
  last_ = time;
  const bool is_late = taken > kMinLateNs + kLateFactor * fastest_;
  fastest_ = std::min(fastest_, taken);
  if (!is_late) return false;
  note_straggler(taken);
  omp_set_num_threads(1);
  is_parallel_ = false;
  return true;
}

}  // namespace paddle_ngraph::mkl_packed
