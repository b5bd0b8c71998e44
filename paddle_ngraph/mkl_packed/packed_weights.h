// Packed weights: one conversion for each version of a weight in inference, one for each use in
// training.
#pragma once

#include <cstdint>
#include <memory>

#include "paddle/phi/core/dense_tensor.h"

#include "mkl_packed/packed_gemm.h"

namespace paddle_ngraph::mkl_packed {

// How a [rows, columns] weight enters a product: as its transpose (forward) or as it is (backward).
enum class WeightOrientation { transposed, plain };

// A conversion of its own, for weights that the next step changes.
std::shared_ptr<const PackedMatrix> pack_once(const GemmProvider& provider,
                                              const phi::DenseTensor& weight,
                                              WeightOrientation side, int64_t m);

// The conversion that is kept for this weight; a new one when its contents are not those converted.
std::shared_ptr<const PackedMatrix> get_packed(const GemmProvider& provider,
                                               const phi::DenseTensor& weight,
                                               WeightOrientation side, int64_t m);

// How many conversions there were.
int64_t pack_count();

// Forgets every conversion.
void clear_packed_weights();

// Whether weights are packed at all; off for measurements only.
void set_packing(bool on);

}  // namespace paddle_ngraph::mkl_packed
