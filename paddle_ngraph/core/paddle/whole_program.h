// A program that consists of one engine operator. Paddle's interpreter would take longer to run it
// than a small function takes to compute.
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
  // A variable that is fed in every run: which of the tensors it is, and what the program declares.
  struct Feed {
    size_t tensor;
    phi::DataType dtype;
    std::vector<int64_t> shape;  // -1: any size
  };

  // tensors: the variables that the operator reads, states last; their scope outlives this.
  // fetches: the output that goes into each column.
  WholeProgram(const std::string& graph, std::vector<int> interval,
               std::vector<phi::DenseTensor*> tensors, std::vector<Feed> feeds,
               std::vector<size_t> fetches);

  // One run on the contents of the scope; returns what is fetched, and consumes the feeds. If it
  // fails, nothing was written and the feeds are still there. Throws what the engine operator
  // throws, and for variables that are not initialized.
  std::vector<phi::DenseTensor> run() const;

  // One run on other feeds than those in the scope, which are left unchanged. Returns nothing if a
  // feed is empty, or not what the program declares.
  std::optional<std::vector<phi::DenseTensor>> run_on(std::vector<phi::DenseTensor> fed) const;

  // One run on the contents of the scope, which keeps the feeds; `targets` are what is fetched
  // afterwards. Returns false, and has done nothing, if a feed is not there or has levels of
  // detail, is empty, or is not what the program declares.
  bool run_into(const std::vector<phi::DenseTensor*>& targets) const;

 private:
  std::vector<phi::DenseTensor> run_with(const std::vector<phi::DenseTensor*>& tensors) const;

  std::shared_ptr<NgraphEngine> engine_;
  std::vector<int> interval_;
  std::vector<phi::DenseTensor*> tensors_;
  std::vector<Feed> feeds_;
  std::vector<size_t> fetches_;
};

// Whether a tensor that is fed has elements, and the dtype and shape that are declared.
bool is_as_declared(const phi::DenseTensor& tensor, phi::DataType dtype,
                    const std::vector<int64_t>& shape);

// Whether something, such as a profiler, needs to see operators one by one, as Paddle's interpreter
// runs them.
bool observes_operators();

}  // namespace paddle_ngraph
