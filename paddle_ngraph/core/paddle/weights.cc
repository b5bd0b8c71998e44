#include "core/paddle/weights.h"

#include <algorithm>
#include <cstring>

#include "core/common/caches.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration weight_fingerprints_declaration(
    "weight_fingerprints", "fingerprints of sets of variables, and epochs of their last check",
    "the variables, by address and memory", "64 for each engine; the oldest is dropped",
    "the end of the engine",
    "counts of changes, which cannot be recomputed, and which a new entry inherits from others");

// Maximum number of watched models that run one graph; beyond it the oldest is dropped.
constexpr size_t kMaxModels = 64;

// After a change, this many runs must find the weights unchanged before they become constants
// again, and twice as many after the next change: in a program that alternates between training and
// testing, compiling new functions would cost more than it saves.
constexpr int64_t kInitialCooldownRuns = 8;
constexpr int kMaxDoublings = 20;

// Weights that stayed unchanged for this many runs have paid for the next function: no cooldown.
// Fewer runs are required of weights whose memory is freed: that model was released, and loading
// the next one has taken as long as compiling for it.
constexpr int64_t kMinRunsPerChange = 256;
constexpr int64_t kMinRunsPerReallocation = 32;

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

uint64_t hash_of(const phi::DenseTensor& tensor, size_t position) {
  return content_hash(memory(tensor), num_bytes(tensor), position);
}

uint64_t combined(const std::vector<uint64_t>& hashes) {
  return content_hash(hashes.data(), hashes.size() * sizeof(uint64_t), 0);
}

// Whether `now` is the allocation recorded as `before`, not one allocated at its address later.
bool is_same(const std::weak_ptr<phi::Allocation>& before,
             const std::shared_ptr<phi::Allocation>& now) {
  return !before.owner_before(now) && !now.owner_before(before);
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

std::optional<uint64_t> WeightWatch::fingerprint(const std::vector<phi::DenseTensor*>& inputs) {
  if (inputs_.empty()) return std::nullopt;
  // Read before the weights, so that a write during the reading counts as a later one.
  const Epoch now = Epoch::now();
  std::lock_guard<std::mutex> lock(mutex_);
  Model* model = find(inputs);
  const bool is_cooling_down = model->cooldown_runs > 0;
  // Weights that programs may have written are not read until the cooldown is over: a program that
  // alternates between training and testing would have all weights read each time.
  const bool may_have_changed = model->was_read && model->epoch.writes != now.writes;
  if (model->cooldown_runs > 1 && may_have_changed) {
    --model->cooldown_runs;
    return std::nullopt;
  }
  const int64_t min_runs = is_freed(*model) ? kMinRunsPerReallocation : kMinRunsPerChange;
  const uint64_t before = model->fingerprint;
  const bool is_new = !model->was_read;
  update(model, inputs, now);
  if (is_new || model->fingerprint == before) {
    ++model->runs;
    if (is_cooling_down && --model->cooldown_runs > 0) return std::nullopt;
    return model->fingerprint;
  }
  if (!is_cooling_down) outdated_ = before;
  const bool is_amortized = std::exchange(model->runs, 1) >= min_runs;
  if (is_amortized) model->changes = 0;
  if (!is_amortized && !is_cooling_down) ++model->changes;
  model->cooldown_runs = is_amortized ? 0 : cooldown_after(model->changes);
  return is_amortized ? std::optional(model->fingerprint) : std::nullopt;
}

int64_t WeightWatch::cooldown_after(int changes) {
  return kInitialCooldownRuns << std::min(changes, kMaxDoublings);
}

bool WeightWatch::is_freed(const Model& model) {
  return std::all_of(model.weights.begin(), model.weights.end(),
                     [](const Weight& weight) { return weight.holder.expired(); });
}

uint64_t WeightWatch::fingerprint_now(const std::vector<phi::DenseTensor*>& inputs) const {
  std::vector<uint64_t> hashes;
  for (size_t i : inputs_) hashes.push_back(hash_of(*inputs[i], hashes.size()));
  return combined(hashes);
}

bool WeightWatch::are_untouched_since(const Epoch& epoch,
                                      const std::vector<phi::DenseTensor*>& inputs) const {
  if (Epoch::now().writes != epoch.writes) return false;
  return std::none_of(inputs_.begin(), inputs_.end(), [&](size_t i) {
    return was_exposed_since(*inputs[i], epoch) || is_writable_by_others(*inputs[i], own_holders());
  });
}

size_t WeightWatch::num_bytes(const std::vector<phi::DenseTensor*>& inputs) const {
  size_t total = 0;
  for (size_t i : inputs_) total += paddle_ngraph::num_bytes(*inputs[i]);
  return total;
}

std::vector<const phi::DenseTensor*> WeightWatch::tensors(
    const std::vector<phi::DenseTensor*>& inputs) const {
  std::vector<const phi::DenseTensor*> found;
  for (size_t i : inputs_) found.push_back(inputs[i]);
  return found;
}

std::optional<uint64_t> WeightWatch::take_outdated() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(outdated_, std::nullopt);
}

WeightWatch::Model* WeightWatch::find(const std::vector<phi::DenseTensor*>& inputs) {
  for (auto& model : models_) {
    const bool same =
        std::equal(inputs_.begin(), inputs_.end(), model.weights.begin(),
                   [&](size_t i, const Weight& known) { return is_of(known, *inputs[i]); });
    if (same) return &model;
  }
  Model model;
  if (are_eager_) inherit_from_freed(&model);
  if (models_.size() == kMaxModels) {
    // If there are too many models (one for each set of addresses of the weights), the new one
    // inherits the cooldown of the oldest: all may be states of one network whose memory is
    // replaced again and again, while another holder retains the former memory, and a function for
    // each would never be used again.
    inherit(&model, models_.front());
    models_.erase(models_.begin());
  }
  for (size_t i : inputs_) {
    model.weights.emplace_back();
    model.weights.back().variable = inputs[i];
    model.weights.back().holder = inputs[i]->Holder();
    model.weights.back().data = memory(*inputs[i]);
  }
  models_.push_back(std::move(model));
  return &models_.back();
}

// The new model inherits the cooldown of models with freed weights: an eager weight may be written
// by replacing its memory, so these may be earlier states of the same model.
void WeightWatch::inherit_from_freed(Model* model) {
  const auto has_freed_memory = [](const Model& known) {
    return std::any_of(known.weights.begin(), known.weights.end(),
                       [](const Weight& weight) { return weight.holder.expired(); });
  };
  const auto freed = std::stable_partition(
      models_.begin(), models_.end(), [&](const auto& known) { return !has_freed_memory(known); });
  for (auto it = freed; it != models_.end(); ++it) inherit(model, *it);
  models_.erase(freed, models_.end());
}

void WeightWatch::inherit(Model* model, const Model& former) {
  if (former.runs >= kMinRunsPerReallocation) return;
  model->changes = std::max(model->changes, former.changes + 1);
  model->cooldown_runs = cooldown_after(model->changes);
}

bool WeightWatch::is_of(const Weight& known, const phi::DenseTensor& tensor) const {
  return are_eager_ ? known.data == memory(tensor) : known.variable == &tensor;
}

void WeightWatch::update(Model* model, const std::vector<phi::DenseTensor*>& inputs,
                         const Epoch& now) const {
  const bool may_all_have_changed = !model->was_read || model->epoch.writes != now.writes;
  const bool was_exposed = model->epoch.exposures != now.exposures;
  bool was_read = false;
  for (size_t position = 0; position < inputs_.size(); ++position) {
    const phi::DenseTensor& tensor = *inputs[inputs_[position]];
    Weight& weight = model->weights[position];
    const auto& holder = tensor.Holder();
    const bool is_untouched =
        !may_all_have_changed && !weight.is_exposed && holder_count(tensor) == own_holders() &&
        is_same(weight.holder, holder) && weight.offset == tensor.meta().offset &&
        weight.num_bytes == paddle_ngraph::num_bytes(tensor) &&
        !(was_exposed && was_exposed_since(tensor, model->epoch));
    if (is_untouched) continue;
    weight.holder = holder;
    weight.data = memory(tensor);
    weight.offset = tensor.meta().offset;
    weight.num_bytes = paddle_ngraph::num_bytes(tensor);
    if (are_eager_ && holder != nullptr) watch_weight(holder);
    // Exposure is determined before the read: a weight that is not exposed by then can be written
    // only after another exposure or run, both of which are detected.
    weight.is_exposed =
        was_exposed_since(tensor, now) || is_writable_by_others(tensor, own_holders());
    weight.hash = hash_of(tensor, position);
    was_read = true;
  }
  model->epoch = now;
  model->was_read = true;
  if (!was_read) return;
  std::vector<uint64_t> hashes;
  for (const auto& weight : model->weights) hashes.push_back(weight.hash);
  model->fingerprint = combined(hashes);
}

}  // namespace paddle_ngraph
