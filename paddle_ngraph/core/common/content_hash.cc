#include "core/common/content_hash.h"

#include <cstring>

namespace paddle_ngraph {

namespace {

uint64_t rotate(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

// One round of xxHash64 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md): its lanes keep
// the multipliers of a core busy.
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
uint64_t mix(uint64_t lane, uint64_t word) { return rotate(lane + word * kPrime2, 31) * kPrime1; }

uint64_t word_at(const char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

}  // namespace

uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed) {
  constexpr size_t kLanes = 4;
  uint64_t lanes[kLanes] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  const auto* at = static_cast<const char*>(data);
  const auto* end = at + num_bytes;
  for (; at + sizeof(lanes) <= end; at += sizeof(lanes)) {
    for (size_t i = 0; i < kLanes; ++i)
      lanes[i] = mix(lanes[i], word_at(at + i * sizeof(uint64_t)));
  }
  char rest[sizeof(lanes)] = {};
  if (at < end) std::memcpy(rest, at, end - at);
  uint64_t hash = mix(num_bytes, seed);
  for (size_t i = 0; i < kLanes; ++i) {
    hash = mix(hash, mix(lanes[i], word_at(rest + i * sizeof(uint64_t))));
  }
  hash = (hash ^ (hash >> 33)) * kPrime2;
  return hash ^ (hash >> 29);
}

}  // namespace paddle_ngraph
