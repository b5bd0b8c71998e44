// Parameters and results of functions that pass tensors of other dtypes as bytes.
//
// Tensors of dtypes that nGraph lacks have an additional last axis with the bytes of an element: a
// build names their ports "bytes/<dtype>/..." (conversion/kernel_calls.py). Booleans are bytes,
// too: inside of a function the plugin has them as u8, and at a boolean port it would convert with
// a loop of one element at a time, which takes five times as long as the comparison before it.
#pragma once

#include <cstddef>
#include <vector>

#include <openvino/core/model.hpp>

#include "core/common/element_type.h"

namespace paddle_ngraph {

// Makes the boolean parameters and results of a model u8, and names them.
void pass_booleans_as_bytes(ov::Model* model);

// The dtype of a parameter or result that passes the elements of a tensor as bytes; nullptr for
// others. Throws NgraphError for a port with another type than its name says: it may come from a
// file.
const ElementNames* type_in_bytes(const ov::Output<const ov::Node>& port);

// The size of the additional last axis of such a port; 0 without one.
size_t axis_of_bytes(const ElementNames* type);

// The sizes of these axes of several ports.
std::vector<size_t> axes_of_bytes(const std::vector<ov::Output<const ov::Node>>& ports);

}  // namespace paddle_ngraph
