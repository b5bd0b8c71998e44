// Errors of the core. All leave the core as Paddle exceptions, which the Executor forwards from its
// worker thread to Python.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace paddle_ngraph {

// Error of the plugin. Thrown only inside the core; the operator and the Python module convert it
// to Paddle's or Python's own exception.
class NgraphError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A tensor value that plain Paddle rejects too; becomes Paddle's InvalidArgument (ValueError).
class InvalidInput : public NgraphError {
 public:
  using NgraphError::NgraphError;
};

// Markers that locate the message of an error of the core's operators in the text of the exception
// with which the CPU plugin wraps it.
constexpr char kInvalidInputBegin[] = "<InvalidInput>";
constexpr char kInvalidInputEnd[] = "</InvalidInput>";

inline std::string mark_invalid_input(const std::string& text) {
  return kInvalidInputBegin + text + kInvalidInputEnd;
}

// Throws the InvalidInput that `error` wraps, if it wraps one.
inline void unwrap_invalid_input(const std::exception& error) {
  const std::string text = error.what();
  const auto begin = text.find(kInvalidInputBegin);
  const auto end = text.find(kInvalidInputEnd);
  if (begin == std::string::npos || end == std::string::npos) return;
  const auto start = begin + sizeof(kInvalidInputBegin) - 1;
  throw InvalidInput(text.substr(start, end - start));
}

template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace paddle_ngraph
