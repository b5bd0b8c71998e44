// One way for an error to leave the core: as a Paddle exception, which the Executor carries from its
// worker thread to Python.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace paddle_ngraph {

// What went wrong on our side of the border. Thrown inside the core only; the operator and the
// Python module turn it into Paddle's or Python's own exception.
class NgraphError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value in a tensor that native Paddle refuses too: becomes Paddle's InvalidArgument (ValueError).
class InvalidInput : public NgraphError {
 public:
  using NgraphError::NgraphError;
};

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace paddle_ngraph
