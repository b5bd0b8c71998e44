#include "core/common/change_hash.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "core/common/random_bytes.h"

namespace paddle_ngraph {

namespace {

// The hash is a tree. Each node hashes up to kBlockWords words, of the contents or of nodes below,
// by the function NH (Black et al., "UMAC: Fast and Secure Message Authentication", 1999) with
// words of 64 bits: two different blocks have equal hashes for at most one key in 2^64. Each level
// of the tree has a key of its own, so that the probabilities add up.
constexpr size_t kBlockWords = 512;
constexpr size_t kBlockBytes = kBlockWords * sizeof(uint64_t);
constexpr size_t kLevels = 5;  // enough for 4096 * 256^4 bytes: 16 TB

using Key = std::array<uint64_t, kBlockWords>;

struct Keys {
  Keys() { fill_with_random_bytes(levels.data(), sizeof(levels)); }
  std::array<Key, kLevels> levels;
};

const Keys& keys() {
  static const Keys* const made = std::make_unique<Keys>().release();  // never destroyed
  return *made;
}

uint64_t word_at(const uint8_t* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// Hashes at most kBlockBytes; the last word pair is padded with zeros.
ChangeHash hash_block(const uint8_t* data, size_t num_bytes, const Key& key) {
  __extension__ using Wide = unsigned __int128;
  constexpr size_t kPairBytes = 2 * sizeof(uint64_t);
  Wide sum = 0;
  const auto add_pair = [&](const uint8_t* pair, size_t i) {
    const uint64_t first = word_at(pair) + key[i];
    const uint64_t second = word_at(pair + sizeof(uint64_t)) + key[i + 1];
    sum += static_cast<Wide>(first) * second;
  };
  size_t i = 0;
  for (; num_bytes >= kPairBytes; i += 2, data += kPairBytes, num_bytes -= kPairBytes) {
    add_pair(data, i);
  }
  if (num_bytes > 0) {
    std::array<uint8_t, kPairBytes> padded{};
    std::copy_n(data, num_bytes, padded.begin());
    add_pair(padded.data(), i);
  }
  return {static_cast<uint64_t>(sum), static_cast<uint64_t>(sum >> 64)};
}

std::vector<ChangeHash> hash_blocks(const uint8_t* data, size_t num_bytes, const Key& key) {
  std::vector<ChangeHash> hashes;
  hashes.reserve((num_bytes + kBlockBytes - 1) / kBlockBytes);
  for (size_t begin = 0; begin < num_bytes; begin += kBlockBytes) {
    hashes.push_back(hash_block(data + begin, std::min(kBlockBytes, num_bytes - begin), key));
  }
  return hashes;
}

ChangeHash hash_from(size_t level, const uint8_t* data, size_t num_bytes);

ChangeHash hash_from(size_t level, const std::vector<ChangeHash>& hashes) {
  return hash_from(level, reinterpret_cast<const uint8_t*>(hashes.data()),
                   hashes.size() * sizeof(ChangeHash));
}

// Hashes contents by the key of this level, and the hashes of blocks by those above it.
ChangeHash hash_from(size_t level, const uint8_t* data, size_t num_bytes) {
  const Key& key = keys().levels.at(level);
  if (num_bytes <= kBlockBytes) return hash_block(data, num_bytes, key);
  return hash_from(level + 1, hash_blocks(data, num_bytes, key));
}

}  // namespace

ChangeHash change_hash(const void* data, size_t num_bytes) {
  return hash_from(0, static_cast<const uint8_t*>(data), num_bytes);
}

ChangeHash combined(const std::vector<ChangeHash>& blocks) {
  // Blocks of kMaxCombinedBytes take two levels.
  static_assert(kMaxCombinedBytes <= kBlockBytes * (kBlockBytes / sizeof(ChangeHash)));
  return hash_from(2, blocks);
}

}  // namespace paddle_ngraph
