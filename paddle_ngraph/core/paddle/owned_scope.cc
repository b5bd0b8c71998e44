#include "core/paddle/owned_scope.h"

#include <utility>

#include <unistd.h>

namespace paddle_ngraph {

namespace py = pybind11;

OwnedScope::OwnedScope(py::object scope, py::object end)
    : scope_(std::move(scope)), end_(std::move(end)), process_(getpid()) {}

OwnedScope::~OwnedScope() {
  if (getpid() != process_) {
    user_.release();
    return;
  }
  user_ = py::none();
  try {
    end_(scope_);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the end of a scope");
  }
}

}  // namespace paddle_ngraph
