// The weights of a subgraph: parameters that only other programs write. A function may contain them
// as constants (packed for its kernels, constant-folded) for as long as they do not change.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/blake3.h"
#include "core/common/change_hash.h"
#include "core/common/fork_safe_mutex.h"
#include "core/paddle/exposure.h"

namespace paddle_ngraph {

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
      : inputs_(std::move(inputs)),
        are_eager_(are_eager),
        table_(std::make_unique<Table>().release()) {}
  ~WeightWatch() { std::unique_ptr<Table>(table_.load()).reset(); }
  WeightWatch(const WeightWatch&) = delete;
  WeightWatch& operator=(const WeightWatch&) = delete;

  // A cryptographic digest of the contents of the weights. Nothing if there are no
  // weights, or while they change too often for a function with constants to pay off.
  std::optional<Digest> fingerprint(const std::vector<phi::DenseTensor*>& inputs);

  // The digest of the weights' current bytes, whatever was known of them.
  Digest fingerprint_now(const std::vector<phi::DenseTensor*>& inputs) const;

  // The digests of the weights with this fingerprint; nothing if it has been forgotten.
  std::optional<std::vector<Digest>> digests_of(const Digest& fingerprint) const;

  // The digests of the weights as they were last read, which may be constants of the function for
  // these inputs; empty if they are not.
  std::vector<Digest> last_digests(const std::vector<phi::DenseTensor*>& inputs) const;

  // Whether nothing can have written the weights since `epoch`, nor can write them now undetected.
  bool are_untouched_since(const Epoch& epoch, const std::vector<phi::DenseTensor*>& inputs) const;

  // Whether variables are untouched that may have been destroyed, and whose memory is pinned.
  bool are_untouched_since(const Epoch& epoch,
                           const std::vector<const phi::DenseTensor*>& variables,
                           const MemoryPin& pin) const;

  const std::vector<size_t>& inputs() const { return inputs_; }

  size_t num_bytes(const std::vector<phi::DenseTensor*>& inputs) const;

  // The tensors that are weights among the inputs of a run.
  std::vector<const phi::DenseTensor*> tensors(const std::vector<phi::DenseTensor*>& inputs) const;

  // Returns the last fingerprint that a change of the weights invalidated, once; nothing if there
  // is none.
  std::optional<Digest> take_outdated();

 private:
  static constexpr size_t kUnread = static_cast<size_t>(-1);

  // The contents of a weight when it was last read. The hash tells in each read whether they have
  // changed; the digest, which takes longer, is computed once a function may be built for them.
  struct Contents {
    size_t num_bytes = kUnread;
    ChangeHash hash{};
    std::optional<Digest> digest;

    bool equal(const Contents& other) const {
      return num_bytes == other.num_bytes && hash == other.hash;
    }
  };

  struct Weight {
    const phi::DenseTensor* variable;
    // Weak reference to the memory: shows whether it was freed, and other memory is at its address
    // now.
    std::weak_ptr<phi::Allocation> holder;
    const void* data = nullptr;
    size_t offset = 0;  // byte offset of the tensor in its memory
    Contents contents;
    bool is_exposed = true;  // whether the weight was exposed when it was read
  };

  // The weights of one set of variables: one graph may run on several models, each with its own.
  struct Model {
    std::vector<Weight> weights;
    std::optional<Digest> fingerprint;  // nothing: to be computed for the present contents
    bool was_read = false;
    Epoch epoch;       // an epoch just before the weights were last read, or last found unchanged
    int64_t runs = 0;  // number of runs since the weights last changed
    int changes = 0;   // number of changes that came before constants had saved their cost
    // Number of runs until weights may become constants again; 0: they may now.
    int64_t cooldown_runs = 0;
  };

  // The known models. In a forked process, another table replaces one whose mutex was locked, which
  // takes as long as a read of all weights: the child lacks the thread that would unlock it.
  struct Table {
    std::atomic<int> forks{fork_count()};
    std::mutex mutex;
    std::vector<Model> models;
    std::optional<Digest> outdated;
  };

  Table& table() const;
  Model* find(const std::vector<phi::DenseTensor*>& inputs);
  static void inherit_from_freed(std::vector<Model>* models, Model* model);
  // Gives `model` the cooldown of `former`, of which it may be a changed version.
  static void inherit(Model* model, const Model& former);
  bool is_of(const Weight& known, const phi::DenseTensor& tensor) const;
  long own_holders() const { return are_eager_ ? 2 : 1; }
  static int64_t cooldown_after(int changes);
  // Whether the memory of all weights of a model has been freed.
  static bool is_freed(const Model& model);
  // The contents of a tensor, without the digest.
  static Contents hashed(const phi::DenseTensor& tensor);
  // The contents of a tensor with their digest: hash and digest are of the same bytes.
  static Contents digested(const phi::DenseTensor& tensor);
  // Reads the weight at this position; its contents were `before`, or are unread.
  Contents read(size_t position, const Contents& before, const phi::DenseTensor& tensor) const;
  // Reads the weights that may have been written since. Returns whether any has changed.
  bool update(Model* model, const std::vector<phi::DenseTensor*>& inputs, const Epoch& now) const;
  // The fingerprint of the contents that update() has read.
  Digest fingerprint_of(Model* model, const std::vector<phi::DenseTensor*>& inputs) const;

  std::vector<size_t> inputs_;
  bool are_eager_;
  mutable std::atomic<Table*> table_;
};

}  // namespace paddle_ngraph
