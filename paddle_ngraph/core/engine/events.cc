#include "core/engine/events.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include <pthread.h>

namespace paddle_ngraph {

namespace {

constexpr size_t kNumTotals = kReasons.size() + kQuantities.size();
using Sums = std::array<uint64_t, kNumTotals>;

// Index of a reason or quantity among the totals.
constexpr size_t index_of(Reason reason) { return static_cast<size_t>(reason); }
constexpr size_t index_of(Quantity quantity) {
  return kReasons.size() + static_cast<size_t>(quantity);
}

// The totals of a thread, which only that thread writes. Never freed: a thread that begins
// continues the totals of one that has ended.
struct alignas(64) ThreadTotals {
  std::array<std::atomic<uint64_t>, kNumTotals> counts{};
  std::atomic<bool> is_in_use{true};
  uint32_t thread = 0;
  ThreadTotals* next = nullptr;

  void add(size_t index, uint64_t number) {
    auto& count = counts[index];
    count.store(count.load(std::memory_order_relaxed) + number, std::memory_order_relaxed);
  }
};

std::atomic<ThreadTotals*> all_totals{nullptr};
std::array<std::atomic<uint64_t>, kNumTotals> sums_at_reset{};

ThreadTotals* take_unused_totals() {
  for (auto* each = all_totals.load(); each != nullptr; each = each->next) {
    if (!each->is_in_use.exchange(true)) return each;
  }
  return nullptr;
}

ThreadTotals* make_totals() {
  auto* made = std::make_unique<ThreadTotals>().release();
  made->next = all_totals.load();
  do {
    made->thread = made->next == nullptr ? 0 : made->next->thread + 1;
  } while (!all_totals.compare_exchange_weak(made->next, made));
  return made;
}

thread_local ThreadTotals* totals_of_thread = nullptr;

struct EndOfThread {
  ~EndOfThread() {
    if (totals_of_thread != nullptr) totals_of_thread->is_in_use = false;
    totals_of_thread = nullptr;
  }
};

ThreadTotals& begin_thread() {
  thread_local const EndOfThread end;
  static_cast<void>(end);
  auto* found = take_unused_totals();
  totals_of_thread = found != nullptr ? found : make_totals();
  return *totals_of_thread;
}

ThreadTotals& own_totals() {
  auto* const found = totals_of_thread;
  return found != nullptr ? *found : begin_thread();
}

Sums sums_of_threads() {
  Sums sums{};
  for (const auto* each = all_totals.load(); each != nullptr; each = each->next) {
    for (size_t i = 0; i < kNumTotals; ++i) {
      sums[i] += each->counts[i].load(std::memory_order_relaxed);
    }
  }
  return sums;
}

// Converts ticks to nanoseconds of the monotonic clock, by the ticks and nanoseconds that have
// passed since the core was loaded.
class TickRate {
 public:
  TickRate() : ticks_(ticks()), ns_(monotonic_ns()) {}

  TickRate since(const TickRate& begin) const {
    TickRate rate = begin;
    if (ticks_ > begin.ticks_) {
      rate.ns_per_tick_ = static_cast<double>(ns_ - begin.ns_) / (ticks_ - begin.ticks_);
    }
    return rate;
  }
  int64_t ns_at(int64_t ticks) const { return ns_ + num_ns(ticks - ticks_); }
  int64_t num_ns(int64_t ticks) const {
    return static_cast<int64_t>(static_cast<double>(ticks) * ns_per_tick_);
  }

 private:
  static int64_t monotonic_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  }

  int64_t ticks_, ns_;
  double ns_per_tick_ = 1.0;
};

const TickRate tick_base;

// The last events. A slot has the event `number` if its version is 2 * number + 2, and a thread
// writes that event if its version is 2 * number + 1.
class Ring {
 public:
  static constexpr size_t kSize = size_t{1} << 16;

  void write(Reason reason, uint64_t subgraph, uint32_t thread, int64_t start, int64_t now) {
    const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = slots_[number % kSize];
    uint64_t before = slot.version.load(std::memory_order_relaxed);
    // A thread that was suspended for a round of the ring still writes the slot, or a later event
    // was written meanwhile: this event is missing in the ring, and counted in the totals.
    if (before % 2 == 1 || before > 2 * number) return;
    if (!slot.version.compare_exchange_strong(before, 2 * number + 1)) return;
    const auto duration = static_cast<uint64_t>(std::clamp<int64_t>(now - start, 0, kMaxTicks));
    // Released, so that a reader of any of these finds the version of a slot that is being written.
    slot.subgraph.store(subgraph, std::memory_order_release);
    slot.start.store(start, std::memory_order_release);
    slot.rest.store(duration << kTicksShift | uint64_t{thread % kThreads} << kThreadShift |
                        static_cast<uint64_t>(reason),
                    std::memory_order_release);
    slot.version.store(2 * number + 2, std::memory_order_release);
  }

  std::vector<Event> read(size_t limit) const {
    const uint64_t end = next_, first = first_;
    const size_t count = std::min({static_cast<size_t>(end - first), limit, kSize});
    const TickRate rate = TickRate().since(tick_base);
    std::vector<Event> events;
    events.reserve(count);
    for (uint64_t number = end - count; number < end; ++number) {
      const Slot& slot = slots_[number % kSize];
      if (slot.version.load(std::memory_order_acquire) != 2 * number + 2) continue;
      const uint64_t subgraph = slot.subgraph.load(std::memory_order_acquire);
      const int64_t start = slot.start.load(std::memory_order_acquire);
      const uint64_t rest = slot.rest.load(std::memory_order_acquire);
      if (slot.version.load(std::memory_order_relaxed) != 2 * number + 2) continue;
      events.push_back({number, static_cast<uint32_t>(rest >> kThreadShift) % kThreads, subgraph,
                        static_cast<Reason>(rest & 0xff), rate.ns_at(start),
                        rate.num_ns(static_cast<int64_t>(rest >> kTicksShift))});
    }
    return events;
  }

  // Events before now are not read any more.
  void forget() { first_ = next_.load(); }

  // Frees the slots in a forked process whose writers do not exist there.
  void free_slots() {
    const size_t count = std::min<uint64_t>(next_, kSize);
    for (size_t i = 0; i < count; ++i) {
      if (slots_[i].version % 2 == 1) slots_[i].version = 0;
    }
  }

 private:
  static constexpr int kThreadShift = 8, kTicksShift = 20;
  static constexpr uint32_t kThreads = 1 << (kTicksShift - kThreadShift);
  static constexpr int64_t kMaxTicks = (int64_t{1} << (63 - kTicksShift)) - 1;

  struct Slot {
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> subgraph{0};
    std::atomic<int64_t> start{0};
    std::atomic<uint64_t> rest{0};  // duration, thread and reason
  };

  std::atomic<uint64_t> next_{0};   // number of events so far
  std::atomic<uint64_t> first_{0};  // number of the first event since the last forget()
  alignas(64) std::array<Slot, kSize> slots_{};
};

Ring ring;

// A forked process has none of the other threads: their totals are free, and no slot is being
// written.
void reset_after_fork() {
  ring.free_slots();
  for (auto* each = all_totals.load(); each != nullptr; each = each->next) {
    if (each != totals_of_thread) each->is_in_use = false;
  }
}

const int registered = pthread_atfork(nullptr, nullptr, reset_after_fork);

}  // namespace

void record_event(Reason reason, uint64_t subgraph, int64_t start) noexcept {
  const int64_t now = ticks();
  auto& totals = own_totals();
  totals.add(index_of(reason), 1);
  ring.write(reason, subgraph, totals.thread, start, now);
}

uint32_t thread_of_events() noexcept { return own_totals().thread; }

void add(Quantity quantity, uint64_t number) noexcept {
  own_totals().add(index_of(quantity), number);
}

Totals totals() {
  Sums sums = sums_of_threads();
  for (size_t i = 0; i < kNumTotals; ++i) sums[i] -= sums_at_reset[i];
  Totals found;
  std::copy_n(sums.begin(), found.events.size(), found.events.begin());
  std::copy_n(sums.begin() + found.events.size(), found.quantities.size(),
              found.quantities.begin());
  return found;
}

std::vector<Event> last_events(size_t limit) { return ring.read(limit); }

void reset_totals() {
  const Sums sums = sums_of_threads();
  for (size_t i = 0; i < kNumTotals; ++i) sums_at_reset[i] = sums[i];
  ring.forget();
}

uint64_t next_program_id() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

double measure_event_ns(size_t count) {
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; ++i) record_event(Reason::kEngine, 0, ticks());
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - begin;
  return time.count() / static_cast<double>(std::max<size_t>(count, 1));
}

}  // namespace paddle_ngraph
