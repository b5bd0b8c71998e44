// Numbers from Paddle's random stream, for the operators of an interval that need them. They are
// drawn before the function runs, in program order, so that the same seed gives the same numbers
// that Paddle's operators would have taken.
#pragma once

#include <optional>
#include <random>
#include <vector>

#include "core/common/random_numbers.h"

namespace paddle_ngraph {

// Fills `outputs[i]` with what `samples[i]` asks for, in order; with a nullptr, the numbers are
// taken from the stream but not stored.
void sample(const std::vector<RandomSample>& samples, const std::vector<void*>& outputs);

// Restores the stream that paddle.seed sets to its earlier position, unless the numbers were used.
class StreamGuard {
 public:
  explicit StreamGuard(bool samples);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  void used() { before_.reset(); }

 private:
  std::optional<std::mt19937_64> before_;
};

}  // namespace paddle_ngraph
