// Direct run of a program that consists of one engine operator: Paddle's interpreter would take
// longer to run the operator than a small function takes to compute.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/ngraph_engine.h"

namespace paddle_ngraph {

class WholeProgram {
 public:
  // A variable that is fed in every run: its index among the tensors, and its declared metadata.
  struct Feed {
    size_t tensor;
    phi::DataType dtype;
    std::vector<int64_t> shape;  // declared shape; -1: dynamic dimension
  };

  // tensors: the variables that the operator reads, states last; their scope outlives this object.
  // fetches: the output index of each fetch column.
  WholeProgram(const std::string& graph, std::vector<int> interval,
               std::vector<phi::DenseTensor*> tensors, std::vector<Feed> feeds,
               std::vector<size_t> fetches);

  // Runs on the contents of the scope; returns the fetched tensors, and clears the feeds. On
  // failure nothing was written and the feeds are still there. Throws the errors of the engine
  // operator, and for variables that are not initialized.
  std::vector<phi::DenseTensor> run() const;

  // Runs the program on feeds other than those in the scope, which are left unchanged. Returns
  // nothing if a feed is empty, or differs from its declaration.
  std::optional<std::vector<phi::DenseTensor>> run_on(std::vector<phi::DenseTensor> fed) const;

  // Runs the program on the contents of the scope, which retains the feeds; fetched tensors are
  // stored in `targets`. Returns false, without side effects, if a feed is missing, has levels of
  // detail, is empty, or differs from its declaration.
  bool run_into(const std::vector<phi::DenseTensor*>& targets) const;

 private:
  std::vector<phi::DenseTensor> run_with(const std::vector<phi::DenseTensor*>& tensors) const;

  std::shared_ptr<NgraphEngine> engine_;
  std::vector<int> interval_;
  std::vector<phi::DenseTensor*> tensors_;
  std::vector<Feed> feeds_;
  std::vector<size_t> fetches_;
};

// Whether a fed tensor has elements, and the dtype and shape that the program declares.
bool is_as_declared(const phi::DenseTensor& tensor, phi::DataType dtype,
                    const std::vector<int64_t>& shape);

// Whether an observer, such as a profiler, needs to see operators one by one, as Paddle's
// interpreter runs them.
bool observes_operators();

}  // namespace paddle_ngraph
