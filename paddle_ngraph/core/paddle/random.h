// Numbers of Paddle's random stream, for the operators of an interval that need some. They are
// drawn before the function runs, in program order, so that the same seed gives the same numbers as
// the operators of Paddle would have taken.
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

// Fills `outputs[i]` with what `draws[i]` asks for, in order; a nullptr: nobody reads the numbers,
// they are only taken.
void draw(const std::vector<Draw>& draws, const std::vector<void*>& outputs);

// Puts the stream that paddle.seed sets back where it was, unless the numbers were used.
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
