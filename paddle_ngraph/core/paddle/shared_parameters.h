// Parameters shared by a predictor and its clones, of which Paddle loads identical copies for each.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Parameters of the same name and contents, which several predictors share. Thread-safe.
class SharedParameters {
 public:
  // Makes a tensor share the memory of the first tensor of this name, if their contents are equal.
  // The tensor must not be in use during the call. Each tensor has its own holder, as if the memory
  // were not shared, since nothing writes to it.
  void share(const std::string& name, phi::DenseTensor* tensor);

  // Returns the memory of the first tensor whose memory share() made `memory` refer to; null if
  // share() has not made `memory`.
  static const phi::Allocation* source_of(const phi::Allocation& memory);

 private:
  class SharedAllocation;

  std::mutex mutex_;
  std::map<std::string, phi::DenseTensor> by_name_;
};

}  // namespace paddle_ngraph
