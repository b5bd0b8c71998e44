#include "mkl_packed/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <tuple>
#include <vector>

#include "core/common/caches.h"
#include "core/common/change_hash.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/lru_cache.h"
#include "mkl_packed/row_matmul.h"

namespace paddle_ngraph::mkl_packed {

namespace {

std::atomic<int64_t> conversions{0};
std::atomic<bool> packing_enabled{true};

// A hash of the contents of a weight. Paddle counts only some writes (not those of an Executor, for
// example), so only the contents themselves are reliable.
ChangeHash fingerprint(const float* data, int64_t count) {
  // Elements that one iteration of the parallel loop hashes.
  constexpr int64_t kBlock = int64_t{64} * 1024;
  static_assert(kBlock * sizeof(float) <= kMaxCombinedBytes);
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<ChangeHash> parts(blocks);
#pragma omp parallel for schedule(static) if (blocks > 1)
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = i * kBlock;
    parts[i] = change_hash(data + first, std::min(kBlock, count - first) * sizeof(float));
  }
  return combined(parts);
}

const CacheDeclaration packed_weights_declaration(
    "packed_weights", "packed weights",
    "address, shape and orientation of the weight, whether for few rows, and provider; valid for a "
    "hash of the contents",
    "the weights that live", clear_packed_weights, nullptr);

// A packed weight, and the memory and contents that it was packed from.
struct PackedWeight {
  std::weak_ptr<phi::Allocation> owner;
  ChangeHash contents;
  std::shared_ptr<const PackedMatrix> matrix;
};

// Key of a packed weight: the address of the weight, its shape and orientation, whether it is for
// left operands of few rows, and the provider that packs it.
using Key = std::tuple<const void*, int64_t, int64_t, WeightOrientation, bool, const GemmProvider*>;

// Bounded by the life of the weights.
using PackedWeights = LruCache<Key, PackedWeight>;

PackedWeights& packed_weights() {
  static PackedWeights cache(std::numeric_limits<size_t>::max());
  return cache;
}

std::optional<PackedWeight> find_packed(const Key& key) {
  const ForkBlocker fork_blocker;
  return packed_weights().find(key);
}

}  // namespace

std::shared_ptr<const PackedMatrix> pack_once(const GemmProvider& provider,
                                              const phi::DenseTensor& weight,
                                              WeightOrientation side, int64_t m) {
  const int64_t rows = weight.dims()[0], columns = weight.dims()[1];
  const bool transposed = side == WeightOrientation::transposed;
  const Matrix b{weight.data<float>(), columns, transposed};
  const int64_t n = transposed ? rows : columns, k = transposed ? columns : rows;
  if (!packing_enabled) return provider.refer(b, n, k);
  const bool is_for_few_rows = m <= provider.max_few_rows();
  if (is_for_few_rows && is_fast_unpacked(b, n, k)) return refer_for_few_rows(b, n, k);
  ++conversions;
  if (is_for_few_rows) return pack_for_few_rows(b, n, k);
  return provider.pack(b, m, n, k);
}

std::shared_ptr<const PackedMatrix> get_packed(const GemmProvider& provider,
                                               const phi::DenseTensor& weight,
                                               WeightOrientation side, int64_t m) {
  if (!packing_enabled) return pack_once(provider, weight, side, m);
  const int64_t rows = weight.dims()[0], columns = weight.dims()[1];
  const Key key{weight.data(), rows, columns, side, m <= provider.max_few_rows(), &provider};
  const ChangeHash contents = fingerprint(weight.data<float>(), rows * columns);
  if (const auto found = find_packed(key)) {
    if (found->contents == contents && found->matrix->fits(m)) return found->matrix;
  }
  auto matrix = pack_once(provider, weight, side, m);
  const ForkBlocker fork_blocker;
  packed_weights().remove_if([](const auto& entry) { return entry.value.owner.expired(); });
  packed_weights().put(key, {weight.Holder(), contents, matrix});
  return matrix;
}

int64_t pack_count() { return conversions; }

void clear_packed_weights() {
  const ForkBlocker fork_blocker;
  packed_weights().clear();
}

void set_packing(bool on) { packing_enabled = on; }

}  // namespace paddle_ngraph::mkl_packed
