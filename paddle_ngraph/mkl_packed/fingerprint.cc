#include "fingerprint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../core/vectorized.h"
#include "threads.h"

namespace paddle_ngraph::mkl_packed {

namespace {

// Floats that one thread takes at a time.
constexpr int64_t kBlock = 64 * 1024;
constexpr int kLanes = 32;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio

// Every lane is a sum of its words, each multiplied by an odd key of its place: two blocks that differ
// in one word never agree, others once in 2^32 a lane.
NGRAPH_VECTORIZED
uint32_t mix(const uint32_t* __restrict__ words, int64_t groups, uint32_t key,
             uint64_t* __restrict__ lanes) {
  for (int64_t g = 0; g < groups; ++g, words += kLanes) {
    key = key * 0x2C1B3C6Du + 0x297A2D39u;
    for (int i = 0; i < kLanes; ++i) {
      lanes[i] = lanes[i] + static_cast<uint64_t>(words[i]) * (key | 1u);
    }
  }
  return key;
}

Fingerprint of_block(const float* data, int64_t count) {
  uint64_t lanes[kLanes] = {};
  const int64_t groups = count / kLanes;
  const auto* words = reinterpret_cast<const uint32_t*>(data);
  const uint32_t key = mix(words, groups, 0x9E3779B9, lanes);
  uint32_t rest[kLanes] = {};
  std::memcpy(rest, data + groups * kLanes, (count - groups * kLanes) * sizeof(float));
  mix(rest, 1, key, lanes);
  Fingerprint sum{};
  for (int i = 0; i < kLanes; ++i) sum[i % 4] = (sum[i % 4] ^ lanes[i]) * kOdd;
  return sum;
}

}  // namespace

Fingerprint fingerprint(const float* data, int64_t count) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<Fingerprint> parts(blocks);
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t i = 0; i < blocks; ++i) {
    parts[i] = of_block(data + i * kBlock, std::min(kBlock, count - i * kBlock));
  }
  Fingerprint sum{};
  for (const auto& part : parts) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = (sum[i] ^ part[i]) * kOdd;
  }
  return sum;
}

}  // namespace paddle_ngraph::mkl_packed
