#include "core/engine/concurrency.h"

#include <algorithm>

namespace paddle_ngraph {

namespace {

constexpr int kOne = 1024;
// The average is that of so many runs.
constexpr int kRuns = 32;

}  // namespace

Concurrency::Run::Run(Concurrency* all) : all_(all) {
  const int running = ++all_->running_;
  is_alone_ = running == 1;
  const int before = all_->average_.load(std::memory_order_relaxed);
  all_->average_.store(before + (running * kOne - before) / kRuns, std::memory_order_relaxed);
}

Concurrency::Run::~Run() { --all_->running_; }

int Concurrency::Run::streams(int threads) const {
  // Half way to the next number counts as that number.
  const int runs = (all_->average_.load(std::memory_order_relaxed) + kOne / 2) / kOne;
  int streams = 1;
  while (2 * streams <= std::min(runs, threads)) streams *= 2;
  return streams;
}

}  // namespace paddle_ngraph
