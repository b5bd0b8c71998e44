// Paddle tensors seen as OpenVINO tensors, without a copy: dtypes, shapes and pointers.
#pragma once

#include <openvino/openvino.hpp>
#include <vector>

#include "paddle/extension.h"
#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// The OpenVINO element type of a Paddle dtype. Throws NgraphError for a dtype that has none.
ov::element::Type to_element_type(paddle::DataType dtype);

// The Paddle dtype of an OpenVINO element type. Throws NgraphError for a type that has none.
paddle::DataType to_data_type(const ov::element::Type& type);

// The DenseTensor behind an operator's input or output; nullptr for an absent optional one.
phi::DenseTensor* dense(const paddle::Tensor& tensor);

// An OpenVINO tensor over the memory of `tensor`. `shape` holds at least one element when the
// Paddle tensor is 0-D.
ov::Tensor view(const phi::DenseTensor& tensor);

// A freshly allocated CPU tensor of Paddle's own allocator.
paddle::Tensor allocate(const ov::Shape& shape, const ov::element::Type& type);

}  // namespace paddle_ngraph
