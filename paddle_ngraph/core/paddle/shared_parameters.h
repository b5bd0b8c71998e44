// Parameters of a predictor and its clones, which Paddle loads for each, though they are the same.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Thread-safe.
class SharedParameters {
 public:
  // Makes a tensor share the memory of the first one of this name, if their contents are the same.
  // The tensor must not be in use meanwhile. Each tensor has its own holder, as if the memory were
  // not shared, since nothing writes to it.
  void share(const std::string& name, phi::DenseTensor* tensor);

  // Whether memory is shared in this way; if so, `source` is the memory it is part of.
  static const phi::Allocation* source_of(const phi::Allocation& memory);

 private:
  class SharedAllocation;

  std::mutex mutex_;
  std::map<std::string, phi::DenseTensor> by_name_;
};

}  // namespace paddle_ngraph
