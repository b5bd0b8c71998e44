// BLAKE3, a collision-resistant hash.
// Specification: https://github.com/BLAKE3-team/BLAKE3-specs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace paddle_ngraph {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  bool operator==(const Digest& other) const { return bytes == other.bytes; }
  bool operator!=(const Digest& other) const { return bytes != other.bytes; }
  bool operator<(const Digest& other) const { return bytes < other.bytes; }

  // Two hexadecimal digits for each byte.
  std::string hex() const;
};

// The BLAKE3 digest of a byte range.
Digest digest_of(const void* data, size_t num_bytes);
inline Digest digest_of(const std::string& text) { return digest_of(text.data(), text.size()); }

// The digest of `num_bytes` bytes that are read in ascending order, at most kMaxReadBytes at a
// time: read(begin, count) returns their address, which is valid until the next call.
constexpr size_t kMaxReadBytes = size_t{256} << 10;
using ReadBytes = std::function<const void*(size_t begin, size_t count)>;
Digest digest_of(size_t num_bytes, const ReadBytes& read);

// The keyed BLAKE3 digest, a message authentication code: it cannot be computed without the key.
Digest keyed_digest_of(const Digest& key, const void* data, size_t num_bytes);

// Compares in a time that does not depend on the contents.
bool is_equal_in_constant_time(const Digest& a, const Digest& b);

}  // namespace paddle_ngraph
