// Properties of and operations on Paddle tensors for the engine.
#pragma once

#include <cstddef>
#include <string>

#include "paddle/phi/common/data_type.h"

#include "core/ov/ov_function.h"

namespace paddle {
class Tensor;
}

namespace phi {
class DenseTensor;
struct DenseTensorMeta;
}  // namespace phi

namespace paddle_ngraph {

// nGraph's name for a Paddle dtype, e.g. "f32". Throws NgraphError for a dtype that has none.
const std::string& element_name(phi::DataType dtype);

// Paddle's dtype of that name, e.g. "float32"; UNDEFINED where nGraph has no such type.
phi::DataType dtype_named(const std::string& name);

// The DenseTensor of an operator's input or output; nullptr for an absent optional one.
phi::DenseTensor* dense(const paddle::Tensor& tensor);

// The dtype and the shape of a tensor. Throws NgraphError for a dtype that nGraph does not have.
ResultType type_of(const phi::DenseTensor& tensor);

size_t num_bytes(const phi::DenseTensor& tensor);

// The memory of a tensor; nullptr for an empty one.
void* memory(const phi::DenseTensor& tensor);

// Whether the tensor has no oneDNN layout, which Paddle's oneDNN operators leave on their results.
bool is_plain(const phi::DenseTensor& tensor);

// Whether the elements are contiguous in row-major order: those of a view (transposed, say) are
// not.
bool is_row_major(const phi::DenseTensor& tensor);

// The tensor with its elements in row-major order.
phi::DenseTensor to_row_major(const phi::DenseTensor& tensor);

// An uninitialized CPU tensor: from the pool or, if small, from Paddle's own allocator.
phi::DenseTensor empty(phi::DenseTensorMeta meta);

// An uninitialized CPU tensor for a result of the engine.
phi::DenseTensor allocate(const ResultType& type);

// Returns a copy of the contents in new memory.
phi::DenseTensor copy_of(const phi::DenseTensor& tensor);

// Whether `tensor` has memory for a result of this dtype and shape.
bool fits(const phi::DenseTensor& tensor, const ResultType& type);

// Whether the memory of `tensor` can hold the contents of `other`.
bool has_capacity(const phi::DenseTensor& tensor, const phi::DenseTensor& other);

// Whether only a variable and `copy`, copied from it, hold their memory.
bool is_sole_holder(const phi::DenseTensor& copy);

}  // namespace paddle_ngraph
