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

  // The graph string.
  const std::string& text() const { return text_; }
  // Distinguishes the engines of a process: Signature::graph.
  uint64_t id() const { return id_; }
  const GraphHeader& header() const { return header_; }
  // The read-only inputs that are read by value.
  const std::vector<size_t>& copied_inputs() const { return copied_inputs_; }

  // Returns the signature of a run, without the fingerprint of its weights.
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
  std::vector<size_t> copied_inputs_;
};

// Hash of a signature without the weights' fingerprint and the settings: of the shapes.
uint64_t shape_hash(Signature key);

}  // namespace paddle_ngraph
