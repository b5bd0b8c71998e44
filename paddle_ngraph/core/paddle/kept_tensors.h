// Tensors of a scope as they are now, to be put there again.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

class KeptTensors {
 public:
  // What the user has, one of the tensors in `of_user`, is shared: it is what the user makes of it.
  // The rest is copied. Throws NgraphError for a tensor that is not plain.
  KeptTensors(const std::vector<const phi::DenseTensor*>& tensors, const pybind11::list& of_user);

  // Gives these tensors, in the same order, the contents that were kept: copies, except of what is
  // the user's, for whoever is given them may write over them.
  void put_into(const std::vector<phi::DenseTensor*>& tensors) const;

 private:
  struct Kept {
    phi::DenseTensor tensor;
    bool is_shared;
  };
  std::vector<Kept> kept_;
};

}  // namespace paddle_ngraph
