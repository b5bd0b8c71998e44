// Numbers from Paddle's random stream, for the operators of an interval that need them. They are
// drawn before the function runs, in program order, so that the same seed gives the same numbers
// that Paddle's operators would have taken.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

enum class Distribution : int {
  keep,     // 0 with probability a, else 1 (uint8)
  uniform,  // a <= value < b (float32)
  normal,   // mean a, standard deviation b (float32)
};

// What one operator draws in a run.
struct Draw {
  Distribution distribution;
  float a;
  float b;
  int64_t seed;  // of a stream of its own; 0: the stream that paddle.seed sets
  std::vector<size_t> shape;

  size_t count() const;
  ResultType type() const;
};

// Fills `outputs[i]` with what `draws[i]` asks for, in order; with a nullptr, the numbers are taken
// from the stream but not stored.
void draw(const std::vector<Draw>& draws, const std::vector<void*>& outputs);

// Restores the stream that paddle.seed sets to its earlier position, unless the numbers were used.
class StreamGuard {
 public:
  explicit StreamGuard(bool draws);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

  void used() { before_.reset(); }

 private:
  std::optional<std::mt19937_64> before_;
};

}  // namespace paddle_ngraph
