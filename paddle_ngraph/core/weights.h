// The weights of an interval: parameters that only other programs write. A function may keep them as
// constants (packed for its kernels, folded into each other) for as long as they stay as they are.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Tells that weights may have been written, anywhere in the process: from then on no function trusts
// its constants before it has read the weights again.
void weights_written();

// 64 bits that stand for some bytes, the same in every process.
uint64_t content_hash(const void* data, size_t num_bytes, uint64_t seed);

// Knows whether weights still hold what they held. Safe to use from several threads.
//
// Writes through Paddle announce themselves by weights_written(); what bypasses it (a view of the
// memory that another library holds) is found as well, by reading one piece of the weights anew in
// each run.
class WeightWatch {
 public:
  // `inputs`: where the weights are among the inputs of an interval.
  explicit WeightWatch(std::vector<size_t> inputs) : inputs_(std::move(inputs)) {}

  // A number that stands for what the weights hold. Nothing when there are none, or while they change
  // too often for a function of their own to pay.
  std::optional<uint64_t> fingerprint(const std::vector<phi::DenseTensor*>& inputs);

  const std::vector<size_t>& inputs() const { return inputs_; }

  size_t num_bytes(const std::vector<phi::DenseTensor*>& inputs) const;

  // The fingerprint that the last change made void, once.
  std::optional<uint64_t> take_outdated();

 private:
  // One set of variables: the same graph may run on several models.
  struct Model {
    std::vector<const phi::DenseTensor*> variables;
    std::vector<const void*> data;
    std::vector<uint64_t> pieces;  // the hash of each piece, weight after weight
    uint64_t fingerprint = 0;
    uint64_t epoch = 0;        // of weights_written() when they were read last
    size_t next_piece = 0;     // to be read anew
    int changes = 0;
    int64_t runs_to_wait = 0;  // before they are trusted again; 0: trusted
  };

  Model* find(const std::vector<phi::DenseTensor*>& inputs);
  bool is_untouched(Model* model, const std::vector<phi::DenseTensor*>& inputs) const;
  void read(Model* model, const std::vector<phi::DenseTensor*>& inputs) const;

  std::vector<size_t> inputs_;
  std::mutex mutex_;
  std::vector<Model> models_;
  std::optional<uint64_t> outdated_;
};

}  // namespace paddle_ngraph
