// Lists of things for Python, each made of an object on the stack.
//
// pybind11 takes an object for another one if it has a wrapper of that one's address, and Paddle
// leaves wrappers of what is gone, such as values of blocks and tensors of scopes: what lies in the
// memory of a vector may be taken for them, and is gone itself when the vector is.
#pragma once

#include <utility>
#include <vector>

#include "core/common/python_casts.h"

namespace paddle_ngraph {

// Copies of all of them.
template <typename T>
pybind11::list copied_list(std::vector<T> items) {
  pybind11::list found;
  for (T& item : items) {
    const T copy = std::move(item);
    found.append(pybind11::cast(copy, pybind11::return_value_policy::copy));
  }
  return found;
}

// A function that returns such a list.
template <typename T, typename... Arguments>
auto returning_copies(std::vector<T> (*function)(Arguments...)) {
  return [function](Arguments... arguments) {
    return copied_list(function(std::forward<Arguments>(arguments)...));
  };
}

}  // namespace paddle_ngraph
