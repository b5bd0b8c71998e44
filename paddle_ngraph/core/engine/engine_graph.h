// EngineGraph: the graph of an engine, and what follows from the graph and the inputs of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

#include "core/engine/function_cache.h"
#include "core/engine/graph_header.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

class EngineGraph {
 public:
  using Inputs = std::vector<phi::DenseTensor*>;

  // Throws NgraphError if the string is not a graph of this release.
  explicit EngineGraph(std::string text);

  // The graph string from which the engine was created.
  const std::string& text() const { return text_; }
  // A number that no other engine of the process has: the member `graph` of its Signatures.
  uint64_t id() const { return id_; }
  // The id of the subgraph in events: the beginning of the digest of the graph, which all processes
  // have in common.
  uint64_t subgraph_id() const { return subgraph_id_; }
  const GraphHeader& header() const { return header_; }
  // Indices of the inputs, without states, whose contents functions read by value.
  const std::vector<size_t>& copied_inputs() const { return copied_inputs_; }

  // The signature of a run's function, without the fingerprint of the weights.
  Signature signature(const Inputs& inputs, const Settings& settings) const;

  // Throws NgraphError if the graph does not have this many inputs, states included.
  void require_inputs(size_t given) const;

  // Throws InvalidInput for inputs without memory, with a LoD, of a dtype that the program does not
  // declare, or empty unless they are lists of axes or sizes.
  void require_valid(const Inputs& inputs) const;

 private:
  void require_dtype(const phi::DenseTensor& tensor, size_t input) const;
  void require_list(size_t input) const;

  const std::string text_;
  const uint64_t id_;
  const GraphHeader header_;
  const uint64_t subgraph_id_;
  std::vector<size_t> copied_inputs_;
};

// Hash of a signature, ignoring weights and settings.
uint64_t shape_hash(Signature key);

}  // namespace paddle_ngraph
