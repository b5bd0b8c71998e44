// Paddle tensors: what the engine has to know and make of them.
#pragma once

#include <cstddef>
#include <string>

#include "paddle/extension.h"
#include "paddle/phi/core/dense_tensor.h"

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// nGraph's name of a Paddle dtype, e.g. "f32". Throws NgraphError for a dtype that has none.
const std::string& element_name(paddle::DataType dtype);

// The DenseTensor behind an operator's input or output; nullptr for an absent optional one.
phi::DenseTensor* dense(const paddle::Tensor& tensor);

size_t num_bytes(const phi::DenseTensor& tensor);

// The memory of a tensor; nullptr for an empty one.
void* memory(const phi::DenseTensor& tensor);

// Whether the elements lie in the order that the shape says; oneDNN's operators of Paddle leave
// others.
bool is_plain(const phi::DenseTensor& tensor);

// The same tensor with its elements in that order.
phi::DenseTensor as_plain(const phi::DenseTensor& tensor);

// A CPU tensor, not initialized: of the pool, a small one of Paddle's own allocator.
phi::DenseTensor empty(phi::DenseTensorMeta meta);

// The same for a result of the engine.
phi::DenseTensor allocate(const ResultType& type);

// The same contents in memory of its own.
phi::DenseTensor copy_of(const phi::DenseTensor& tensor);

// Whether `tensor` has memory for such a result: the same dtype and shape.
bool fits(const phi::DenseTensor& tensor, const ResultType& type);

// Whether the memory of `tensor` can hold the contents of `other`.
bool has_room(const phi::DenseTensor& tensor, const phi::DenseTensor& other);

// Whether only a variable and `copy`, made of it, hold their memory.
bool is_held_by_one(const phi::DenseTensor& copy);

}  // namespace paddle_ngraph
