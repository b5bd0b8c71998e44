// A fast hash that detects whether contents have changed, and cannot be predicted: its key is
// random in each process, and neither the key nor a hash leaves the process.
//
// A cryptographic hash (blake3.h) costs several times as much, and weights that others can write
// are hashed in each run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace paddle_ngraph {

using ChangeHash = std::array<uint64_t, 2>;

// The hash of a byte range. Two given contents of equal size have equal hashes with a probability
// of at most 5 in 2^64, over the random keys.
ChangeHash change_hash(const void* data, size_t num_bytes);

// The hash of contents that were hashed in blocks of equal size, of at most this many bytes; the
// last block may be smaller.
constexpr size_t kMaxCombinedBytes = size_t{1} << 20;
ChangeHash combined(const std::vector<ChangeHash>& blocks);

}  // namespace paddle_ngraph
