// A fast hash for hash tables. Collisions are easy to find, so equal hashes do not mean equal
// contents: compare the contents too, or use blake3.h or change_hash.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paddle_ngraph {

// A 64-bit hash of a byte range, equal in every process.
uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed);

}  // namespace paddle_ngraph
