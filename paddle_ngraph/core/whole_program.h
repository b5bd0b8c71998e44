// A program of nothing but one engine operator. Paddle's interpreter would take longer to run it
// than a small function takes to compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ngraph_engine.h"

namespace paddle_ngraph {

class WholeProgram {
 public:
  // tensors: of the variables that the operator reads, states last; their scope outlives this.
  // feeds:   which of them a run uses up.
  // fetches: the output that goes into each column.
  WholeProgram(const std::string& graph, std::vector<int> interval,
               std::vector<phi::DenseTensor*> tensors, std::vector<size_t> feeds,
               std::vector<size_t> fetches);

  // One run; what is fetched. Where it fails, nothing was written and the feeds are still there.
  // Throws what the engine operator throws.
  std::vector<phi::DenseTensor> run() const;

 private:
  std::shared_ptr<NgraphEngine> engine_;
  std::vector<int> interval_;
  std::vector<phi::DenseTensor*> tensors_;
  std::vector<size_t> feeds_;
  std::vector<size_t> fetches_;
};

// Whether somebody wants to see operators one by one, a profiler say: Paddle's interpreter shows them.
bool is_watched();

}  // namespace paddle_ngraph
