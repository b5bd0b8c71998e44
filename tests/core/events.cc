// Writes events in 8 threads while another one reads them, over several rounds of the ring, and
// prints what does not fit: events whose members are of different events, and sums.
#include "core/engine/events.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

using namespace paddle_ngraph;

namespace {

constexpr int kThreads = 8;
constexpr int kEvents = 100000;

// The subgraph and the duration follow from the reason.
bool is_whole(const Event& event) {
  return event.subgraph == 1000 + static_cast<uint64_t>(event.reason) && event.num_ns >= 0;
}

void write(int thread) {
  for (int i = 0; i < kEvents; ++i) {
    const auto reason = static_cast<Reason>((thread * 7 + i) % kReasons.size());
    record_event(reason, 1000 + static_cast<uint64_t>(reason), ticks());
    add(Quantity::kStepsInPlace, 2);
  }
}

bool is_read_whole(uint64_t* read) {
  uint64_t before = 0;
  for (const auto& event : last_events(1 << 16)) {
    if (!is_whole(event) || (before != 0 && event.number <= before)) return false;
    before = event.number;
    ++*read;
  }
  return true;
}

}  // namespace

int main() {
  for (int round = 0; round < 2; ++round) {
    std::atomic<int> running{kThreads};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread, &running] {
        write(thread);
        --running;
      });
    }
    uint64_t read = 0;
    while (running > 0) {
      if (!is_read_whole(&read)) std::puts("an event was torn");
    }
    for (auto& thread : threads) thread.join();
    if (!is_read_whole(&read)) std::puts("an event was torn at the end");
    if (read == 0) std::puts("nothing was read");
    uint64_t events = 0;
    const Totals sums = totals();
    for (const uint64_t count : sums.events) events += count;
    if (events != uint64_t{kThreads} * kEvents) std::puts("the sums differ");
    if (sums.quantities[static_cast<size_t>(Quantity::kStepsInPlace)] != 2 * events) {
      std::puts("the quantities differ");
    }
    // Nearly all slots are complete when no thread writes.
    if (last_events(1 << 20).size() < (1 << 16) - kThreads * kThreads) std::puts("events miss");
    reset_totals();
    if (!last_events(1).empty() || totals().events != Totals().events) std::puts("not reset");
  }
}
