// Random numbers as Paddle's operators draw them, from a given stream.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

enum class Distribution : int {
  dropout_mask,  // 0 with probability a, else 1 (uint8)
  uniform,       // a <= value < b (float32)
  normal,        // mean a, standard deviation b (float32)
};

// What one operator draws in a run.
struct RandomSample {
  Distribution distribution;
  float a;
  float b;
  int64_t seed;  // of a stream of its own; 0: the stream that paddle.seed sets
  std::vector<size_t> shape;

  size_t count() const;
  ResultType type() const;
};

// Fills `output` with what `sample` asks for; if that is a nullptr, the numbers are taken from the
// stream but not stored. A draw with a seed leaves `stream` alone.
void sample(const RandomSample& sample, std::mt19937_64* stream, void* output);

}  // namespace paddle_ngraph
