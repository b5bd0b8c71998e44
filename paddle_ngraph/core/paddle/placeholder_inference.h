// Shapes and dtypes of results of the core's custom operators, before their kernels have run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "paddle/phi/api/ext/op_meta_info.h"

namespace paddle_ngraph {

// Returns placeholders for shapes: Paddle requires one shape and dtype per fresh output before the
// kernel sets the real ones.
template <size_t kOutputs>
std::vector<std::vector<int64_t>> placeholder_shapes(
    const std::vector<std::vector<int64_t>>& /*inputs*/,
    const std::vector<std::vector<std::vector<int64_t>>>& /*vector_inputs*/,
    const std::vector<paddle::any>& /*attributes*/) {
  return std::vector<std::vector<int64_t>>(kOutputs, std::vector<int64_t>{0});
}

template <size_t kOutputs>
std::vector<paddle::DataType> placeholder_dtypes(
    const std::vector<paddle::DataType>& /*inputs*/,
    const std::vector<std::vector<paddle::DataType>>& /*vector_inputs*/,
    const std::vector<paddle::any>& /*attributes*/) {
  return std::vector<paddle::DataType>(kOutputs, paddle::DataType::FLOAT32);
}

}  // namespace paddle_ngraph
