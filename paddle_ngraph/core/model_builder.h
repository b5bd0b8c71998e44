// From a graph string to a compiled function: the only place where the core calls Python, on a cache
// miss, and the only place that knows how the CPU plugin is configured.
#pragma once

#include <memory>
#include <openvino/openvino.hpp>
#include <string>
#include <vector>

#include "ngraph_engine.h"

namespace paddle_ngraph {

struct BuiltModel {
  std::shared_ptr<ov::Model> model;
  std::vector<size_t> parameter_inputs;
  std::vector<RangeCheck> checks;
};

// Throws NgraphError when the digest in the first line does not fit the rest. Takes the GIL.
void verify_graph(const std::string& graph);

// Lets the bridge describe the graph for these inputs. Takes the GIL; Python's exceptions come back
// as NgraphError with their text.
BuiltModel build_model(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                       const std::vector<size_t>& value_inputs);

// Compiles for the CPU: float32 stays float32, all threads work on one request.
ov::CompiledModel compile(const std::shared_ptr<ov::Model>& model);

}  // namespace paddle_ngraph
