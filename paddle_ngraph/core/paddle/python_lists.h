// Python lists whose elements are each copied from an object on the stack.
//
// pybind11 confuses an object with another one if a wrapper of the other's address exists, and
// Paddle leaves wrappers of destroyed objects, such as values of blocks and tensors of scopes:
// elements in the memory of a vector may be confused with them, and are destroyed themselves with
// the vector.
#pragma once

#include <utility>
#include <vector>

#include "core/common/python_casts.h"

namespace paddle_ngraph {

// A Python list with a copy of each item of a vector.
template <typename T>
pybind11::list copied_list(std::vector<T> items) {
  pybind11::list found;
  for (T& item : items) {
    const T copy = std::move(item);
    found.append(pybind11::cast(copy, pybind11::return_value_policy::copy));
  }
  return found;
}

// Wraps a function that returns a vector into one that returns a list of copies.
template <typename T, typename... Arguments>
auto returning_copies(std::vector<T> (*function)(Arguments...)) {
  return [function](Arguments... arguments) {
    return copied_list(function(std::forward<Arguments>(arguments)...));
  };
}

}  // namespace paddle_ngraph
