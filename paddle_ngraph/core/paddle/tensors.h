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

// Paddle's dtype with this name, e.g. "float32"; UNDEFINED for a dtype that nGraph does not have.
phi::DataType dtype_named(const std::string& name);

// The DenseTensor inside an operator's input or output; nullptr if an optional one is absent.
phi::DenseTensor* dense(const paddle::Tensor& tensor);

// The dtype and the shape of a tensor. Throws NgraphError for a dtype that nGraph does not have.
ResultType type_of(const phi::DenseTensor& tensor);

size_t num_bytes(const phi::DenseTensor& tensor);

// The address of a tensor's data; nullptr for an empty tensor.
void* memory(const phi::DenseTensor& tensor);

// Whether the tensor has no oneDNN layout, which Paddle's oneDNN operators leave on their results.
bool is_plain(const phi::DenseTensor& tensor);

// Whether the elements are contiguous in row-major order: those of a view (transposed, say) are
// not.
bool is_row_major(const phi::DenseTensor& tensor);

// The tensor itself if it is row-major, else a row-major copy.
phi::DenseTensor to_row_major(const phi::DenseTensor& tensor);

// An uninitialized CPU tensor: large ones from the memory pool, small ones from Paddle's allocator.
phi::DenseTensor empty(phi::DenseTensorMeta meta);

// Allocates an uninitialized CPU tensor for a result of the engine.
phi::DenseTensor allocate(const ResultType& type);

// Returns a copy of a tensor in new memory.
phi::DenseTensor copy_of(const phi::DenseTensor& tensor);

// Whether `tensor` is allocated with this dtype and shape, so that a result can be written to it.
bool fits(const phi::DenseTensor& tensor, const ResultType& type);

// Whether the memory of `tensor` is large enough for the contents of `other`.
bool has_capacity(const phi::DenseTensor& tensor, const phi::DenseTensor& other);

// Whether nothing but one variable, and its copy `copy`, refers to their memory.
bool is_sole_holder(const phi::DenseTensor& copy);

}  // namespace paddle_ngraph
