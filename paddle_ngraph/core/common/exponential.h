// The exponential function of a float, inlined into vectorized loops.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/common/vectorized.h"

namespace paddle_ngraph {

NGRAPH_INLINE inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

NGRAPH_INLINE inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// e^x = 2^n (1 + rest), with e^r - 1 of |r| <= ln(2)/2 by its Taylor polynomial.
struct Exponential {
  float power;  // the factor 2^n
  float rest;   // e^r - 1, where x = n ln(2) + r
};

constexpr float kMaxExponent = 87.0f;

// e^x for |x| <= kMaxExponent; NaN for NaN.
NGRAPH_INLINE inline Exponential exponential_within(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: to add it rounds a float to an integer
  const float rounded = x * 1.44269504f + kRound;
  const float n = rounded - kRound;
  // The remainder of x, x - n ln(2); ln(2) is split into two constants, for precision.
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  // The polynomial is evaluated in pairs of terms, for a short chain of dependent operations.
  const float square = r * r;
  const float high = (1.0f / 720.0f + r * (1.0f / 5040.0f)) * square;
  const float middle = (1.0f / 24.0f + r * (1.0f / 120.0f) + high) * square;
  const float low = 0.5f + r * (1.0f / 6.0f);
  return {from_bits((to_bits(rounded) + 127) << 23), (low + middle) * square + r};
}

// e^x for any x; x is clamped to |x| <= kMaxExponent.
NGRAPH_INLINE inline Exponential exponential(float x) {
  x = x > kMaxExponent ? kMaxExponent : x;
  return exponential_within(x < -kMaxExponent ? -kMaxExponent : x);
}

}  // namespace paddle_ngraph
