// The arities under which the custom operator `ngraph_engine` is registered.
#pragma once

#include <cstddef>

namespace paddle_ngraph {

constexpr size_t kMaxOutputsLog2 = 10;
constexpr size_t kMaxOutputs = size_t{1} << kMaxOutputsLog2;

// The smallest registered arity that holds `num_outputs` fresh outputs. Throws NgraphError when
// there is none.
size_t output_capacity(size_t num_outputs);

}  // namespace paddle_ngraph
