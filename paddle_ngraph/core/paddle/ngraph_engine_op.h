// The custom operator `ngraph_engine`: its registration for each number of inputs and outputs, and
// its errors.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace paddle_ngraph {

constexpr size_t kMaxOutputsLog2 = 13;
constexpr size_t kMaxOutputs = size_t{1} << kMaxOutputsLog2;

// The smallest registered arity that holds `num_outputs` new outputs. Throws NgraphError if there
// is none.
size_t output_capacity(size_t num_outputs);

// Runs `function`. Exceptions are rethrown as Paddle exceptions: InvalidArgument for InvalidInput,
// else External, with the interval (the range of the operator list) where the error happened;
// exceptions thrown by Paddle itself stay unchanged.
void run_subgraph(const std::vector<int>& interval, const std::function<void()>& function);

}  // namespace paddle_ngraph
