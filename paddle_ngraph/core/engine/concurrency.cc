#include "core/engine/concurrency.h"

#include <algorithm>

namespace paddle_ngraph {

namespace {

constexpr int kAverageScale = 1024;
// Number of runs over which the moving average of concurrent runs is taken.
constexpr int kAveragedRuns = 32;

}  // namespace

Concurrency::Run::Run(Concurrency* owner) : owner_(owner) {
  const int running = ++owner_->running_;
  is_alone_ = running == 1;
  const int before = owner_->average_.load(std::memory_order_relaxed);
  owner_->average_.store(before + (running * kAverageScale - before) / kAveragedRuns,
                         std::memory_order_relaxed);
}

Concurrency::Run::~Run() { --owner_->running_; }

int Concurrency::Run::streams(int threads) const {
  // The average number of concurrent runs, rounded half up.
  const int runs =
      (owner_->average_.load(std::memory_order_relaxed) + kAverageScale / 2) / kAverageScale;
  int streams = 1;
  while (2 * streams <= std::min(runs, threads)) streams *= 2;
  return streams;
}

}  // namespace paddle_ngraph
