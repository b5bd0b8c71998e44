// Random numbers from Paddle's generator, for the stochastic operators of a subgraph. Sampled
// before the function runs, in program order, so that a seed gives the numbers that Paddle's
// operators would have generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "core/common/random_numbers.h"

namespace paddle_ngraph {

// Fills `outputs[i]` with the sample `samples[i]`, in order; for a nullptr, the generator advances
// but nothing is stored.
void sample(const std::vector<RandomSample>& samples, const std::vector<void*>& outputs);

// A period in which this thread changes the generator that paddle.seed sets: by sample(), or while
// a verified run is repeated.
class GeneratorChange {
 public:
  GeneratorChange();
  ~GeneratorChange();
  GeneratorChange(const GeneratorChange&) = delete;
  GeneratorChange& operator=(const GeneratorChange&) = delete;
};

// Number of such periods that have begun in other threads than this one; -1 while one lasts.
int64_t generator_changes_of_other_threads();

// A copy of the generator that paddle.seed sets.
class RandomState {
 public:
  RandomState();

  // The state in kNumWords words, and the state that words() returned; other words give some state.
  static constexpr size_t kNumWords = std::mt19937_64::state_size + 1;
  std::vector<uint64_t> words() const;
  static RandomState of(const std::vector<uint64_t>& words);

  // Sets the generator to this state.
  void restore() const;

  // Whether the same numbers follow. Then the words may still differ: which of the numbers so far
  // they begin with is arbitrary.
  bool operator==(const RandomState& other) const;

 private:
  std::mt19937_64 engine_;
};

// At its end, restores the generator that paddle.seed sets, unless used() has been called: a failed
// run samples nothing.
class StreamGuard {
 public:
  explicit StreamGuard(bool samples);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  void used() { before_.reset(); }

 private:
  std::optional<RandomState> before_;
};

}  // namespace paddle_ngraph
