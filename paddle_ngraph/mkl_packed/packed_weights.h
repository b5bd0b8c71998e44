// Packed weights: packed once per version of a weight in inference, once per use in training.
#pragma once

#include <cstdint>
#include <memory>

#include "paddle/phi/core/dense_tensor.h"

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// Whether a [rows, columns] weight is packed transposed, for the forward pass, or as it is, for the
// backward pass.
enum class WeightOrientation { transposed, plain };

// Packs a weight without storing the result in the cache, since the next training step changes the
// weight.
std::shared_ptr<const PackedMatrix> pack_once(const GemmProvider& provider,
                                              const phi::DenseTensor& weight,
                                              WeightOrientation side, int64_t m);

// Returns the cached packed weight; packs again if the contents of the weight have changed.
std::shared_ptr<const PackedMatrix> get_packed(const GemmProvider& provider,
                                               const phi::DenseTensor& weight,
                                               WeightOrientation side, int64_t m);

// The number of times that a weight has been packed in this process.
int64_t pack_count();

// Clears the cache of packed weights.
void clear_packed_weights();

// Switches packing of weights on or off; off is for measurements only.
void set_packing(bool on);

}  // namespace paddle_ngraph::mkl_packed
