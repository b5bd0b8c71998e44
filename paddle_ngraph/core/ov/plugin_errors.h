// Errors that cross OpenVINO as text: its CPU plugin and its Python bindings replace the exception
// of an operator by an exception of their own, whose message contains that of the operator. Only
// this file searches messages of OpenVINO.
#pragma once

#include <exception>
#include <optional>

#include "core/common/error.h"

namespace paddle_ngraph {

// The error to throw in an operator for `error`: its message is tagged with code and operator, so
// that found_invalid_input() finds it.
InvalidInput tagged(const InvalidInput& error);

// The error that an operator threw, if the message of an exception contains one. Paddle's side of
// the core calls this function too, hence no std::string (see ov_function.h).
std::optional<InvalidInput> found_invalid_input(const char* message);

// Whether an error says that the plugin could not compile fused loops (its snippets): for lack of
// registers, whose number it does not check beforehand, or since it fused two loops of which one
// reads a result that depends on the other, as it does around a split with several readers.
bool is_loop_fusion_error(const std::exception& error);

// Returns function(). If OpenVINO throws an error that wraps the InvalidInput of an operator,
// throws the latter.
template <typename Function>
auto unwrapping_errors(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    if (const auto found = found_invalid_input(error.what())) throw InvalidInput(*found);
    throw;
  }
}

}  // namespace paddle_ngraph
