#include "mkl_packed/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/common/caches.h"
#include "core/common/change_hash.h"
#include "core/common/fork_safe_mutex.h"

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
    "address, shape and orientation of the weight, whether for one row, and provider; valid for a "
    "hash of the contents",
    "the weights that live", clear_packed_weights, nullptr);

// A packed weight, and the memory and contents that it was packed from.
struct Entry {
  std::weak_ptr<phi::Allocation> owner;
  ChangeHash contents;
  std::shared_ptr<const PackedMatrix> matrix;
};

// The address of a weight, its shape and orientation, whether it is for one row, and its provider.
using Key = std::tuple<const void*, int64_t, int64_t, WeightOrientation, bool, const GemmProvider*>;

class Cache {
 public:
  static Cache& instance() {
    static Cache cache;
    return cache;
  }

  std::shared_ptr<const PackedMatrix> find(const Key& key, const ChangeHash& contents) {
    const ForkBlocker fork_blocker;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end() || found->second.contents != contents) return nullptr;
    return found->second.matrix;
  }

  void keep(const Key& key, Entry entry) {
    const ForkBlocker fork_blocker;
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.owner.expired() ? entries_.erase(it) : std::next(it);
    }
    entries_[key] = std::move(entry);
  }

  void clear() {
    const ForkBlocker fork_blocker;
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.clear();
  }

 private:
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace

std::shared_ptr<const PackedMatrix> pack_once(const GemmProvider& provider,
                                              const phi::DenseTensor& weight,
                                              WeightOrientation side, int64_t m) {
  const int64_t rows = weight.dims()[0], columns = weight.dims()[1];
  const bool transposed = side == WeightOrientation::transposed;
  const Matrix b{weight.data<float>(), columns, transposed};
  const int64_t n = transposed ? rows : columns, k = transposed ? columns : rows;
  if (!packing_enabled) return provider.refer(b, n, k);
  ++conversions;
  return provider.pack(b, m, n, k);
}

std::shared_ptr<const PackedMatrix> get_packed(const GemmProvider& provider,
                                               const phi::DenseTensor& weight,
                                               WeightOrientation side, int64_t m) {
  if (!packing_enabled) return pack_once(provider, weight, side, m);
  const int64_t rows = weight.dims()[0], columns = weight.dims()[1];
  const Key key{weight.data(), rows, columns, side, m == 1, &provider};
  const ChangeHash contents = fingerprint(weight.data<float>(), rows * columns);
  auto matrix = Cache::instance().find(key, contents);
  if (matrix == nullptr || !matrix->fits(m)) {
    matrix = pack_once(provider, weight, side, m);
    Cache::instance().keep(key, {weight.Holder(), contents, matrix});
  }
  return matrix;
}

int64_t pack_count() { return conversions; }

void clear_packed_weights() { Cache::instance().clear(); }

void set_packing(bool on) { packing_enabled = on; }

}  // namespace paddle_ngraph::mkl_packed
