// Splits and concatenates tensors along axis 0.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Splits a tensor into equal slices, views of its memory. Throws NgraphError if the number of rows
// is not divisible.
std::vector<phi::DenseTensor> split_rows(const phi::DenseTensor& tensor, int64_t parts);

// Concatenates the rows of tensors, in new memory. Throws NgraphError if the tensors differ in more
// than the number of rows.
phi::DenseTensor concat_rows(const std::vector<const phi::DenseTensor*>& tensors);

}  // namespace paddle_ngraph
