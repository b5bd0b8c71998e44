#include "core/common/blake3.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/common/vectorized.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "BLAKE3 reads little-endian words, and this file does not convert them."
#endif

namespace paddle_ngraph {

namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kChunkBytes = 1024;
constexpr size_t kBlocksPerChunk = kChunkBytes / kBlockBytes;

enum Flags : uint32_t {
  kChunkStart = 1,
  kChunkEnd = 2,
  kParent = 4,
  kRoot = 8,
  kKeyed = 16,
};

using Words = std::array<uint32_t, 8>;   // a chaining value, or the key
using Block = std::array<uint32_t, 16>;  // words of a message block

constexpr Words kInitial = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                            0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

// The order in which each round reads the words of the block.
constexpr std::array<std::array<uint8_t, 16>, 7> kSchedule{{
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
    {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
    {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13},
}};

NGRAPH_INLINE inline uint32_t rotate(uint32_t word, int bits) {
  return (word >> bits) | (word << (32 - bits));
}

NGRAPH_INLINE inline void mix(uint32_t* a, uint32_t* b, uint32_t* c, uint32_t* d, uint32_t x,
                              uint32_t y) {
  *a += *b + x;
  *d = rotate(*d ^ *a, 16);
  *c += *d;
  *b = rotate(*b ^ *c, 12);
  *a += *b + y;
  *d = rotate(*d ^ *a, 8);
  *c += *d;
  *b = rotate(*b ^ *c, 7);
}

template <size_t kRound>
NGRAPH_INLINE inline void mix_round(Block* state, const Block& m) {
  constexpr const auto& order = kSchedule[kRound];
  auto& s = *state;
  mix(&s[0], &s[4], &s[8], &s[12], m[order[0]], m[order[1]]);
  mix(&s[1], &s[5], &s[9], &s[13], m[order[2]], m[order[3]]);
  mix(&s[2], &s[6], &s[10], &s[14], m[order[4]], m[order[5]]);
  mix(&s[3], &s[7], &s[11], &s[15], m[order[6]], m[order[7]]);
  mix(&s[0], &s[5], &s[10], &s[15], m[order[8]], m[order[9]]);
  mix(&s[1], &s[6], &s[11], &s[12], m[order[10]], m[order[11]]);
  mix(&s[2], &s[7], &s[8], &s[13], m[order[12]], m[order[13]]);
  mix(&s[3], &s[4], &s[9], &s[14], m[order[14]], m[order[15]]);
}

// Compresses a block into the chaining value `cv`, which is replaced.
NGRAPH_INLINE inline void compress(Words* cv, const Block& m, uint64_t counter, uint32_t num_bytes,
                                   uint32_t flags) {
  auto& v = *cv;
  Block s = {v[0],
             v[1],
             v[2],
             v[3],
             v[4],
             v[5],
             v[6],
             v[7],
             kInitial[0],
             kInitial[1],
             kInitial[2],
             kInitial[3],
             static_cast<uint32_t>(counter),
             static_cast<uint32_t>(counter >> 32),
             num_bytes,
             flags};
  mix_round<0>(&s, m);
  mix_round<1>(&s, m);
  mix_round<2>(&s, m);
  mix_round<3>(&s, m);
  mix_round<4>(&s, m);
  mix_round<5>(&s, m);
  mix_round<6>(&s, m);
  v = {s[0] ^ s[8],  s[1] ^ s[9],  s[2] ^ s[10], s[3] ^ s[11],
       s[4] ^ s[12], s[5] ^ s[13], s[6] ^ s[14], s[7] ^ s[15]};
}

// Number of chunks or parents that are hashed side by side, one in each lane of a register.
constexpr size_t kLanes = 16;

// Hashes `kLanes` messages of `num_blocks` whole blocks each. The counter of lane i is
// `counter + i * step`.
NGRAPH_VECTORIZED void hash_lanes(const std::array<const uint8_t*, kLanes>& messages,
                                  size_t num_blocks, const Words& key, uint64_t counter,
                                  uint64_t step, uint32_t flags, uint32_t first_flag,
                                  uint32_t last_flag, Words* results) {
  alignas(64) uint32_t cv[8][kLanes];
  alignas(64) uint32_t m[16][kLanes];
  alignas(64) uint32_t low[kLanes];
  alignas(64) uint32_t high[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    low[i] = static_cast<uint32_t>(counter + i * step);
    high[i] = static_cast<uint32_t>((counter + i * step) >> 32);
    for (size_t word = 0; word < 8; ++word) cv[word][i] = key[word];
  }
  for (size_t block = 0; block < num_blocks; ++block) {
    for (size_t i = 0; i < kLanes; ++i) {
      Block words;
      std::memcpy(words.data(), messages[i] + block * kBlockBytes, kBlockBytes);
      for (size_t word = 0; word < 16; ++word) m[word][i] = words[word];
    }
    const uint32_t all =
        flags | (block == 0 ? first_flag : 0) | (block + 1 == num_blocks ? last_flag : 0);
    for (size_t i = 0; i < kLanes; ++i) {
      Words v = {cv[0][i], cv[1][i], cv[2][i], cv[3][i], cv[4][i], cv[5][i], cv[6][i], cv[7][i]};
      const Block words = {m[0][i],  m[1][i],  m[2][i],  m[3][i], m[4][i],  m[5][i],
                           m[6][i],  m[7][i],  m[8][i],  m[9][i], m[10][i], m[11][i],
                           m[12][i], m[13][i], m[14][i], m[15][i]};
      compress(&v, words, uint64_t{high[i]} << 32 | low[i], kBlockBytes, all);
      cv[0][i] = v[0];
      cv[1][i] = v[1];
      cv[2][i] = v[2];
      cv[3][i] = v[3];
      cv[4][i] = v[4];
      cv[5][i] = v[5];
      cv[6][i] = v[6];
      cv[7][i] = v[7];
    }
  }
  for (size_t i = 0; i < kLanes; ++i) {
    for (size_t word = 0; word < 8; ++word) results[i][word] = cv[word][i];
  }
}

Block block_at(const uint8_t* data, size_t num_bytes) {
  Block words{};
  std::memcpy(words.data(), data, num_bytes);
  return words;
}

Block parent_of(const Words& left, const Words& right) {
  Block words;
  std::copy(left.begin(), left.end(), words.begin());
  std::copy(right.begin(), right.end(), words.begin() + left.size());
  return words;
}

// Hashes one chunk of at most kChunkBytes; `last_flags` are set for its last block.
Words hash_chunk(const uint8_t* data, size_t num_bytes, const Words& key, uint64_t counter,
                 uint32_t flags, uint32_t last_flags) {
  Words cv = key;
  uint32_t first_flag = kChunkStart;
  for (; num_bytes > kBlockBytes; num_bytes -= kBlockBytes, data += kBlockBytes) {
    compress(&cv, block_at(data, kBlockBytes), counter, kBlockBytes, flags | first_flag);
    first_flag = 0;
  }
  compress(&cv, block_at(data, num_bytes), counter, static_cast<uint32_t>(num_bytes),
           flags | first_flag | last_flags);
  return cv;
}

// Hashes `count` messages of equal size, `kLanes` at a time. Lanes without a message repeat the
// last one.
template <typename Message>
void hash_all(size_t count, const Message& message, size_t num_blocks, const Words& key,
              uint64_t counter, uint64_t step, uint32_t flags, uint32_t first_flag,
              uint32_t last_flag, Words* results) {
  std::array<const uint8_t*, kLanes> lanes;
  std::array<Words, kLanes> hashed;
  for (size_t begin = 0; begin < count; begin += kLanes) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = message(std::min(begin + i, count - 1));
    hash_lanes(lanes, num_blocks, key, counter + begin * step, step, flags, first_flag, last_flag,
               hashed.data());
    std::copy_n(hashed.begin(), std::min(kLanes, count - begin), results + begin);
  }
}

// Replaces nodes of the tree by their parents, level by level, until at most `count` are left. A
// node without a neighbor moves up a level.
void reduce(std::vector<Words>* nodes, size_t count, const Words& key, uint32_t flags) {
  while (nodes->size() > count) {
    const size_t pairs = nodes->size() / 2;
    // The children of a parent are adjacent: together they are its message block.
    const auto* const blocks = reinterpret_cast<const uint8_t*>(nodes->data());
    std::vector<Words> parents(pairs);
    hash_all(
        pairs, [&](size_t i) { return blocks + i * kBlockBytes; }, 1, key, 0, 0, flags | kParent, 0,
        0, parents.data());
    if (nodes->size() % 2 == 1) parents.push_back(nodes->back());
    nodes->swap(parents);
  }
}

std::vector<Words> hash_chunks(const uint8_t* data, size_t num_bytes, const Words& key,
                               uint64_t counter, uint32_t flags) {
  const size_t whole = num_bytes / kChunkBytes;
  const size_t rest = num_bytes % kChunkBytes;
  std::vector<Words> nodes(whole + (rest > 0 ? 1 : 0));
  hash_all(
      whole, [&](size_t i) { return data + i * kChunkBytes; }, kBlocksPerChunk, key, counter, 1,
      flags, kChunkStart, kChunkEnd, nodes.data());
  if (rest > 0) {
    nodes[whole] =
        hash_chunk(data + whole * kChunkBytes, rest, key, counter + whole, flags, kChunkEnd);
  }
  return nodes;
}

// Size of the subtrees that are reduced to one node at once, so that few nodes are in memory: a
// power of two.
constexpr size_t kSubtreeBytes = 256 * kChunkBytes;
static_assert(kSubtreeBytes == kMaxReadBytes);

template <typename Read>
Digest hash(size_t num_bytes, const Read& read, const Words& key, uint32_t flags) {
  const auto bytes = [&](size_t begin, size_t count) {
    return static_cast<const uint8_t*>(read(begin, count));
  };
  Words root;
  if (num_bytes <= kChunkBytes) {
    root = hash_chunk(bytes(0, num_bytes), num_bytes, key, 0, flags, kChunkEnd | kRoot);
  } else {
    std::vector<Words> nodes;
    if (num_bytes <= kSubtreeBytes) {
      nodes = hash_chunks(bytes(0, num_bytes), num_bytes, key, 0, flags);
    }
    for (size_t begin = 0; num_bytes > kSubtreeBytes && begin < num_bytes; begin += kSubtreeBytes) {
      const size_t count = std::min(kSubtreeBytes, num_bytes - begin);
      auto subtree = hash_chunks(bytes(begin, count), count, key, begin / kChunkBytes, flags);
      reduce(&subtree, 1, key, flags);
      nodes.push_back(subtree[0]);
    }
    reduce(&nodes, 2, key, flags);
    root = key;
    compress(&root, parent_of(nodes[0], nodes[1]), 0, kBlockBytes, flags | kParent | kRoot);
  }
  Digest digest;
  std::memcpy(digest.bytes.data(), root.data(), sizeof(digest.bytes));
  return digest;
}

auto in_memory(const void* data) {
  return
      [data](size_t begin, size_t /*count*/) { return static_cast<const uint8_t*>(data) + begin; };
}

}  // namespace

std::string Digest::hex() const {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Digest digest_of(const void* data, size_t num_bytes) {
  return hash(num_bytes, in_memory(data), kInitial, 0);
}

Digest digest_of(size_t num_bytes, const ReadBytes& read) {
  return hash(num_bytes, read, kInitial, 0);
}

Digest keyed_digest_of(const Digest& key, const void* data, size_t num_bytes) {
  Words words;
  std::memcpy(words.data(), key.bytes.data(), sizeof(words));
  return hash(num_bytes, in_memory(data), words, kKeyed);
}

bool is_equal_in_constant_time(const Digest& a, const Digest& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) difference |= a.bytes[i] ^ b.bytes[i];
  return difference == 0;
}

}  // namespace paddle_ngraph
