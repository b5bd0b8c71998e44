#include "mkl_packed/late_threads.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <omp.h>

#include "mkl_packed/threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// A step is late if it takes longer than this and so many times the fastest one.
constexpr int64_t kLate = 500'000;
constexpr int64_t kTimes = 8;

// One thread goes on alone for so many times what the late step took, and twice as long if threads
// are late again soon after.
constexpr int64_t kTimesAlone = 2, kMostAlone = 1'600'000'000;

int64_t now() { return nanoseconds(Clock::now().time_since_epoch()).count(); }

std::atomic<int64_t> alone_until{0};
std::atomic<int64_t> alone_for{0};

// The fastest steps so far, by their kind. Not locked: that a time is lost, or another one's, costs
// some time and nothing else.
struct Fastest {
  std::atomic<uint64_t> kind{0};
  std::atomic<int64_t> time{0};
};
std::array<Fastest, 64> all_fastest;

Fastest& fastest_of(uint64_t kind) { return all_fastest[kind >> 58]; }

// Steps that take as long: other numbers of threads, and operands in bfloat16, do not.
uint64_t kind_of(int64_t work, const GemmProvider& gemm) {
  uint64_t kind = 0;
  const uint64_t library = reinterpret_cast<uintptr_t>(&gemm);
  for (const uint64_t each :
       {static_cast<uint64_t>(work), static_cast<uint64_t>(num_omp_threads()), library}) {
    kind = (kind ^ each) * 0x9e3779b97f4a7c15u;
  }
  return kind;
}

// As far as is known; else what a step takes at the very most: a nanosecond for each operation.
int64_t time_of(uint64_t kind, int64_t work) {
  const Fastest& known = fastest_of(kind);
  return known.kind == kind ? known.time.load() : work;
}

void note_late(int64_t taken) {
  const int64_t time = now(), before = alone_for;
  const bool is_soon = time < alone_until + 4 * before;
  alone_for = std::min(std::max(kTimesAlone * taken, is_soon ? 2 * before : 0), kMostAlone);
  alone_until = time + alone_for;
}

}  // namespace

bool are_threads_late() { return now() < alone_until; }

void take_steps_alone(nanoseconds time) { alone_until = now() + time.count(); }

StepClock::StepClock(int64_t work, const GemmProvider& gemm)
    : kind_(kind_of(work, gemm)),
      meet_(num_omp_threads() > 1),
      fastest_(time_of(kind_, work)),
      last_(Clock::now()) {}

StepClock::~StepClock() {
  if (!meet_) return;
  Fastest& known = fastest_of(kind_);
  known.time = fastest_;
  known.kind = kind_;
}

bool StepClock::were_late() {
  if (!meet_) return false;
  const auto time = Clock::now();
  const int64_t taken = nanoseconds(time - last_).count();
  last_ = time;
  const bool are_late = taken > kLate + kTimes * fastest_;
  fastest_ = std::min(fastest_, taken);
  if (!are_late) return false;
  note_late(taken);
  omp_set_num_threads(1);
  meet_ = false;
  return true;
}

}  // namespace paddle_ngraph::mkl_packed
