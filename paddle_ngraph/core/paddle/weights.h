// The weights of a subgraph: parameters that only other programs write. A function may contain them
// as constants (packed for its kernels, constant-folded) for as long as they do not change.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/paddle/exposure.h"

namespace paddle_ngraph {

// A 64-bit hash of a byte range, equal in every process.
uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed);

// Tracks whether weights have changed. Thread-safe.
//
// A weight is read again in every run in which it may differ from when it was last read: if a
// program that may write variables has run since or is running, if its variable has other memory,
// if Python has had an object for the tensor since, or if something else could write to the memory
// when it was last read, or can now (exposure.h). Nothing else can write to it.
class WeightWatch {
 public:
  // `inputs`: the indices of the weights among the inputs of a subgraph. `are_eager`: whether each
  // has two holders in a run, the eager tensor of a layer and a Paddle variable. Such Paddle
  // variables are temporary, and operators of dynamic mode write the eager tensor.
  WeightWatch(std::vector<size_t> inputs, bool are_eager)
      : inputs_(std::move(inputs)), are_eager_(are_eager) {}

  // A fingerprint of the contents of the weights. Nothing if there are no weights, or while they
  // change too often for a function with constants to pay off.
  std::optional<uint64_t> fingerprint(const std::vector<phi::DenseTensor*>& inputs);

  // The fingerprint of the current bytes of the weights, computed anew.
  uint64_t fingerprint_now(const std::vector<phi::DenseTensor*>& inputs) const;

  // Whether nothing can have written the weights since `epoch`, nor can write them now undetected.
  bool are_untouched_since(const Epoch& epoch, const std::vector<phi::DenseTensor*>& inputs) const;

  const std::vector<size_t>& inputs() const { return inputs_; }

  size_t num_bytes(const std::vector<phi::DenseTensor*>& inputs) const;

  // The tensors that are weights among the inputs of a run.
  std::vector<const phi::DenseTensor*> tensors(const std::vector<phi::DenseTensor*>& inputs) const;

  // Returns, once, the fingerprint that the weights had before their last change, for the functions
  // built for it to be dropped; nothing if there was no change since the previous call.
  std::optional<uint64_t> take_outdated();

 private:
  struct Weight {
    const phi::DenseTensor* variable;
    // Weak reference to the memory: shows whether it was freed, and other memory is at its address
    // now.
    std::weak_ptr<phi::Allocation> holder;
    const void* data = nullptr;
    size_t offset = 0;  // offset of the tensor from the start of its memory, in bytes
    size_t num_bytes = 0;
    uint64_t hash = 0;
    // Whether Python had an object of the weight when its contents were read.
    bool is_exposed = true;
  };

  // The weights of one set of variables: one graph may run on several models, each with its own.
  struct Model {
    std::vector<Weight> weights;
    uint64_t fingerprint = 0;
    bool was_read = false;
    Epoch epoch;       // an epoch just before the weights were last read, or last found unchanged
    int64_t runs = 0;  // number of runs since the weights last changed
    int changes = 0;   // number of changes that came before constants had saved their cost
    // Number of runs until weights may become constants again; 0: they may now.
    int64_t cooldown_runs = 0;
  };

  Model* find(const std::vector<phi::DenseTensor*>& inputs);
  void inherit_from_freed(Model* model);
  // Gives `model` the cooldown of `former`, of which it may be a changed version.
  static void inherit(Model* model, const Model& former);
  bool is_of(const Weight& known, const phi::DenseTensor& tensor) const;
  long own_holders() const { return are_eager_ ? 2 : 1; }
  static int64_t cooldown_after(int changes);
  // Whether the memory of all weights of a model has been freed.
  static bool is_freed(const Model& model);
  // Reads the weights that may have been written since the last time, and updates the fingerprint.
  void update(Model* model, const std::vector<phi::DenseTensor*>& inputs, const Epoch& now) const;

  std::vector<size_t> inputs_;
  bool are_eager_;
  std::mutex mutex_;
  std::vector<Model> models_;
  std::optional<uint64_t> outdated_;
};

}  // namespace paddle_ngraph
