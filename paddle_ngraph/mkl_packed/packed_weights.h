// Packed weights: packed once per version of a weight in inference, once per use in training.
#pragma once

#include <cstdint>
#include <memory>

#include "paddle/phi/core/dense_tensor.h"

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// The form in which a [rows, columns] weight is an operand: its transpose (forward) or itself
// (backward).
enum class WeightOrientation { transposed, plain };

// Packs a weight without the cache, for weights that the next step changes.
std::shared_ptr<const PackedMatrix> pack_once(const GemmProvider& provider,
                                              const phi::DenseTensor& weight,
                                              WeightOrientation side, int64_t m);

// Returns the cached packed weight; packs again if the contents of the weight have changed.
std::shared_ptr<const PackedMatrix> get_packed(const GemmProvider& provider,
                                               const phi::DenseTensor& weight,
                                               WeightOrientation side, int64_t m);

// The number of times that a weight was packed in this process.
int64_t pack_count();

// Clears the cache.
void clear_packed_weights();

// Sets whether weights are packed; off for measurements only.
void set_packing(bool on);

}  // namespace paddle_ngraph::mkl_packed
