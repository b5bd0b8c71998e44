// A fast hash for hash tables. Collisions are easy to find, so equal hashes do not mean equal
// contents: compare the contents too, or use blake3.h or change_hash.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ngraph {

// A 64-bit hash of a byte range, equal in every process.
uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed);

// The hash of a sequence of numbers, from the hash of all but the last of them.
constexpr size_t combined_hash(size_t hash, size_t number) {
  return hash ^ (number + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2));
}

}  // namespace paddle_ngraph
