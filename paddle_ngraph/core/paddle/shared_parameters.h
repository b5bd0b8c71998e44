// Parameters of a predictor and its clones: Paddle loads them once for each, and they are the same.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Safe to use from several threads.
class SharedParameters {
 public:
  // Makes the memory of a tensor that of the first one of this name, if their contents are the
  // same. Nobody else may use the tensor meanwhile. Each tensor has a holder of its own, as if
  // nobody shared the memory: nobody writes it.
  void share(const std::string& name, phi::DenseTensor* tensor);

  // Whether memory is shared in this way; then `source` is what it is part of.
  static const phi::Allocation* source_of(const phi::Allocation& memory);

 private:
  class Lent;

  std::mutex mutex_;
  std::map<std::string, phi::DenseTensor> first_;
};

}  // namespace paddle_ngraph
