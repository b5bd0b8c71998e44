#include "core/paddle/weights.h"

#include <algorithm>

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

// The change hash is that of blocks of this size, so that the blocks of a digest can be hashed,
// too.
static_assert(kMaxReadBytes <= kMaxCombinedBytes);

Digest combined(const std::vector<Digest>& digests) {
  return digest_of(digests.data(), digests.size() * sizeof(Digest));
}

// Whether `now` is the allocation recorded as `before`, not one allocated at its address later.
bool is_same(const std::weak_ptr<phi::Allocation>& before,
             const std::shared_ptr<phi::Allocation>& now) {
  return !before.owner_before(now) && !now.owner_before(before);
}

}  // namespace

WeightWatch::Table& WeightWatch::table() const {
  Table* found = table_;
  const int forks = fork_count();
  if (found->forks == forks) return *found;
  if (found->mutex.try_lock()) {  // no thread of the parent was reading weights
    found->forks = forks;
    found->mutex.unlock();
    return *found;
  }
  // The former table is not freed. If another thread was first, `found` is that thread's.
  auto renewed = std::make_unique<Table>();
  if (table_.compare_exchange_strong(found, renewed.get())) found = renewed.release();
  return *found;
}

std::optional<Digest> WeightWatch::fingerprint(const std::vector<phi::DenseTensor*>& inputs) {
  if (inputs_.empty()) return std::nullopt;
  // Read before the weights, so that a write during the reading counts as a later one.
  const Epoch now = Epoch::now();
  Table& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
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
  const std::optional<Digest> before = model->fingerprint;
  const bool is_new = !model->was_read;
  const bool has_changed = update(model, inputs, now);
  if (is_new || !has_changed) {
    ++model->runs;
    if (is_cooling_down && --model->cooldown_runs > 0) return std::nullopt;
    return fingerprint_of(model, inputs);
  }
  if (before && !is_cooling_down) known.outdated = before;
  const bool is_amortized = std::exchange(model->runs, 1) >= min_runs;
  if (is_amortized) model->changes = 0;
  if (!is_amortized && !is_cooling_down) ++model->changes;
  model->cooldown_runs = is_amortized ? 0 : cooldown_after(model->changes);
  return is_amortized ? std::optional(fingerprint_of(model, inputs)) : std::nullopt;
}

int64_t WeightWatch::cooldown_after(int changes) {
  return kInitialCooldownRuns << std::min(changes, kMaxDoublings);
}

bool WeightWatch::is_freed(const Model& model) {
  return std::all_of(model.weights.begin(), model.weights.end(),
                     [](const Weight& weight) { return weight.holder.expired(); });
}

Digest WeightWatch::fingerprint_now(const std::vector<phi::DenseTensor*>& inputs) const {
  std::vector<Contents> contents;
  for (size_t i : inputs_) contents.push_back(hashed(*inputs[i]));
  {
    Table& known = table();
    std::lock_guard<std::mutex> lock(known.mutex);
    for (const auto& model : known.models) {
      const bool same = std::equal(
          contents.begin(), contents.end(), model.weights.begin(),
          [](const Contents& now, const Weight& weight) { return now.equal(weight.contents); });
      if (same && model.fingerprint) return *model.fingerprint;
    }
  }
  std::vector<Digest> digests;
  for (size_t i : inputs_) digests.push_back(*digested(*inputs[i]).digest);
  return combined(digests);
}

std::optional<std::vector<Digest>> WeightWatch::digests_of(const Digest& fingerprint) const {
  Table& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  for (const auto& model : known.models) {
    if (model.fingerprint != fingerprint) continue;
    std::vector<Digest> digests;
    for (const auto& weight : model.weights) digests.push_back(*weight.contents.digest);
    return digests;
  }
  return std::nullopt;
}

std::vector<Digest> WeightWatch::last_digests(const std::vector<phi::DenseTensor*>& inputs) const {
  Table& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  for (const auto& model : known.models) {
    const bool same =
        std::equal(inputs_.begin(), inputs_.end(), model.weights.begin(),
                   [&](size_t i, const Weight& weight) { return is_of(weight, *inputs[i]); });
    if (!same || !model.fingerprint) continue;
    std::vector<Digest> digests;
    for (const auto& weight : model.weights) digests.push_back(*weight.contents.digest);
    return digests;
  }
  return {};
}

bool WeightWatch::are_untouched_since(const Epoch& epoch,
                                      const std::vector<phi::DenseTensor*>& inputs) const {
  if (Epoch::now().writes != epoch.writes) return false;
  return std::none_of(inputs_.begin(), inputs_.end(), [&](size_t i) {
    return was_exposed_since(*inputs[i], epoch) || is_writable_by_others(*inputs[i], own_holders());
  });
}

bool WeightWatch::are_untouched_since(const Epoch& epoch,
                                      const std::vector<const phi::DenseTensor*>& variables,
                                      const MemoryPin& pin) const {
  if (Epoch::now().writes != epoch.writes) return false;
  const auto& tensors = pin.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (was_exposed_since(variables[i], tensors[i], epoch)) return false;
    if (is_writable_by_others(tensors[i], own_holders())) return false;
  }
  return true;
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

std::optional<Digest> WeightWatch::take_outdated() {
  Table& known = table();
  std::lock_guard<std::mutex> lock(known.mutex);
  return std::exchange(known.outdated, std::nullopt);
}

WeightWatch::Model* WeightWatch::find(const std::vector<phi::DenseTensor*>& inputs) {
  auto& models = table().models;
  for (auto& model : models) {
    const bool same =
        std::equal(inputs_.begin(), inputs_.end(), model.weights.begin(),
                   [&](size_t i, const Weight& known) { return is_of(known, *inputs[i]); });
    if (same) return &model;
  }
  Model model;
  if (are_eager_) inherit_from_freed(&models, &model);
  if (models.size() == kMaxModels) {
    // If there are too many models (one for each set of addresses of the weights), the new one
    // inherits the cooldown of the oldest: all may be states of one network whose memory is
    // replaced again and again, while another holder retains the former memory, and a function for
    // each would never be used again.
    inherit(&model, models.front());
    models.erase(models.begin());
  }
  for (size_t i : inputs_) {
    model.weights.emplace_back();
    model.weights.back().variable = inputs[i];
    model.weights.back().holder = inputs[i]->Holder();
    model.weights.back().data = memory(*inputs[i]);
  }
  models.push_back(std::move(model));
  return &models.back();
}

// The new model inherits the cooldown of models with freed weights: an eager weight may be written
// by replacing its memory, so these may be earlier states of the same model.
void WeightWatch::inherit_from_freed(std::vector<Model>* models, Model* model) {
  const auto has_freed_memory = [](const Model& known) {
    return std::any_of(known.weights.begin(), known.weights.end(),
                       [](const Weight& weight) { return weight.holder.expired(); });
  };
  const auto freed = std::stable_partition(
      models->begin(), models->end(), [&](const auto& known) { return !has_freed_memory(known); });
  for (auto it = freed; it != models->end(); ++it) inherit(model, *it);
  models->erase(freed, models->end());
}

void WeightWatch::inherit(Model* model, const Model& former) {
  if (former.runs >= kMinRunsPerReallocation) return;
  model->changes = std::max(model->changes, former.changes + 1);
  model->cooldown_runs = cooldown_after(model->changes);
}

bool WeightWatch::is_of(const Weight& known, const phi::DenseTensor& tensor) const {
  return are_eager_ ? known.data == memory(tensor) : known.variable == &tensor;
}

bool WeightWatch::update(Model* model, const std::vector<phi::DenseTensor*>& inputs,
                         const Epoch& now) const {
  const bool may_all_have_changed = !model->was_read || model->epoch.writes != now.writes;
  const bool was_exposed = model->epoch.exposures != now.exposures;
  bool has_changed = false;
  for (size_t position = 0; position < inputs_.size(); ++position) {
    const phi::DenseTensor& tensor = *inputs[inputs_[position]];
    Weight& weight = model->weights[position];
    const auto& holder = tensor.Holder();
    const bool is_untouched =
        !may_all_have_changed && !weight.is_exposed && holder_count(tensor) == own_holders() &&
        is_same(weight.holder, holder) && weight.offset == tensor.meta().offset &&
        weight.contents.num_bytes == paddle_ngraph::num_bytes(tensor) &&
        !(was_exposed && was_exposed_since(tensor, model->epoch));
    if (is_untouched) continue;
    if (are_eager_ && holder != nullptr) watch_weight(holder);
    // Exposure is determined before the read: a weight that is not exposed by then can be written
    // only after another exposure or run, both of which are detected.
    const bool is_exposed =
        was_exposed_since(tensor, now) || is_writable_by_others(tensor, own_holders());
    const Contents contents = read(position, weight.contents, tensor);
    // From here on nothing throws, so that the record of a weight is that of one read.
    if (!contents.equal(weight.contents)) {
      has_changed = true;
      model->fingerprint = std::nullopt;
    }
    weight.holder = holder;
    weight.data = memory(tensor);
    weight.offset = tensor.meta().offset;
    weight.is_exposed = is_exposed;
    weight.contents = contents;
  }
  model->epoch = now;
  model->was_read = true;
  return has_changed;
}

Digest WeightWatch::fingerprint_of(Model* model,
                                   const std::vector<phi::DenseTensor*>& inputs) const {
  if (model->fingerprint) return *model->fingerprint;
  std::vector<Digest> digests;
  for (size_t position = 0; position < inputs_.size(); ++position) {
    Contents& contents = model->weights[position].contents;
    // A weight that is written concurrently has other contents by now.
    if (!contents.digest) contents = digested(*inputs[inputs_[position]]);
    digests.push_back(*contents.digest);
  }
  model->fingerprint = combined(digests);
  return *model->fingerprint;
}

WeightWatch::Contents WeightWatch::hashed(const phi::DenseTensor& tensor) {
  const size_t size = paddle_ngraph::num_bytes(tensor);
  const auto* data = static_cast<const char*>(memory(tensor));
  std::vector<ChangeHash> blocks;
  for (size_t begin = 0; begin < size; begin += kMaxReadBytes) {
    blocks.push_back(change_hash(data + begin, std::min(kMaxReadBytes, size - begin)));
  }
  return {size, combined(blocks), {}};
}

WeightWatch::Contents WeightWatch::digested(const phi::DenseTensor& tensor) {
  const size_t size = paddle_ngraph::num_bytes(tensor);
  const auto* data = static_cast<const char*>(memory(tensor));
  std::vector<ChangeHash> blocks;
  // Each block is read once: another thread may write it between two reads.
  std::vector<char> block(std::min(kMaxReadBytes, size));
  const Digest digest = digest_of(size, [&](size_t begin, size_t count) {
    std::copy_n(data + begin, count, block.data());
    if (count > 0) blocks.push_back(change_hash(block.data(), count));
    return block.data();
  });
  return {size, combined(blocks), digest};
}

WeightWatch::Contents WeightWatch::read(size_t position, const Contents& before,
                                        const phi::DenseTensor& tensor) const {
  const Contents now = hashed(tensor);
  if (now.equal(before)) return before;
  for (const auto& model : table().models) {
    const Contents& known = model.weights[position].contents;
    if (now.equal(known)) return known;
  }
  return now;
}

}  // namespace paddle_ngraph
