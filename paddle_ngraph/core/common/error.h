// One way for an error to leave the core: as a Paddle exception, which the Executor carries from
// its worker thread to Python.
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

// A value in a tensor that native Paddle refuses too: becomes Paddle's InvalidArgument
// (ValueError).
class InvalidInput : public NgraphError {
 public:
  using NgraphError::NgraphError;
};

// The CPU plugin wraps what an operator of ours throws into an exception of its own, whose text
// holds ours: these marks find it again.
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
