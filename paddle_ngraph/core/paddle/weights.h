// The weights of an interval: parameters that only other programs write. A function may keep them
// as constants (packed for its kernels, folded into each other) for as long as they do not change.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/paddle/exposure.h"

namespace paddle_ngraph {

// A 64-bit hash of some bytes, the same in every process.
uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed);

// Tracks whether weights have changed. Thread-safe.
//
// A weight is read again in every run in which it may differ from when it was last read: if a
// program that may write variables has run since or is running, if its variable has other memory,
// if Python has had an object for the tensor since, or if something else could write to the memory
// when it was last read, or can now (exposure.h). Nothing else can write to it.
class WeightWatch {
 public:
  // `inputs`: where the weights are among the inputs of an interval.
  // `are_eager`: whether each has two holders in a run, the eager tensor of a layer and a variable
  // of Paddle's. Variables come and go then, and operators of dynamic mode write the tensor.
  WeightWatch(std::vector<size_t> inputs, bool are_eager)
      : inputs_(std::move(inputs)), are_eager_(are_eager) {}

  // A fingerprint of the contents of the weights. Nothing if there are none, or while they change
  // too often for a function with constants to be worth it.
  std::optional<uint64_t> fingerprint(const std::vector<phi::DenseTensor*>& inputs);

  // The same fingerprint, of exactly these bytes.
  uint64_t fingerprint_now(const std::vector<phi::DenseTensor*>& inputs) const;

  // Whether nothing can have written the weights since, nor can now without being noticed.
  bool are_untouched_since(const Epoch& epoch, const std::vector<phi::DenseTensor*>& inputs) const;

  const std::vector<size_t>& inputs() const { return inputs_; }

  size_t num_bytes(const std::vector<phi::DenseTensor*>& inputs) const;

  // Those of the inputs that are weights.
  std::vector<const phi::DenseTensor*> tensors(const std::vector<phi::DenseTensor*>& inputs) const;

  // The fingerprint that the last change invalidated; returned once.
  std::optional<uint64_t> take_outdated();

 private:
  struct Weight {
    const phi::DenseTensor* variable;
    std::weak_ptr<phi::Allocation> holder;  // tells its memory from other memory at the same place
    const void* data = nullptr;
    size_t offset = 0;  // of the tensor in its memory
    size_t num_bytes = 0;
    uint64_t hash = 0;
    bool is_exposed = true;  // to others, when it was read
  };

  // One set of variables: the same graph may run on several models.
  struct Model {
    std::vector<Weight> weights;
    uint64_t fingerprint = 0;
    bool was_read = false;
    Epoch epoch;                // just before they were read, or found to be as they were
    int64_t runs = 0;           // that found them as they were, since they have changed
    int changes = 0;            // that came too soon
    int64_t cooldown_runs = 0;  // before they are trusted again; 0: trusted
  };

  Model* find(const std::vector<phi::DenseTensor*>& inputs);
  void inherit_from_freed(Model* model);
  // The model may be the former one, changed.
  static void inherit(Model* model, const Model& former);
  bool is_of(const Weight& known, const phi::DenseTensor& tensor) const;
  long own_holders() const { return are_eager_ ? 2 : 1; }
  static int64_t cooldown_after(int changes);
  // Whether none of its weights is in the memory in which it was.
  static bool is_freed(const Model& model);
  // Reads what may have been written since, and sets the fingerprint.
  void update(Model* model, const std::vector<phi::DenseTensor*>& inputs, const Epoch& now) const;

  std::vector<size_t> inputs_;
  bool are_eager_;
  std::mutex mutex_;
  std::vector<Model> models_;
  std::optional<uint64_t> outdated_;
};

}  // namespace paddle_ngraph
