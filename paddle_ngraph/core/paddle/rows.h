// Tensors divided along axis 0, and put together again.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Equal parts of a tensor, in its memory. Throws NgraphError if it does not divide.
std::vector<phi::DenseTensor> split_rows(const phi::DenseTensor& tensor, int64_t parts);

// The rows of tensors one after the other, in memory of their own. Throws NgraphError if they
// differ in more than in their number.
phi::DenseTensor concat_rows(const std::vector<const phi::DenseTensor*>& tensors);

}  // namespace paddle_ngraph
