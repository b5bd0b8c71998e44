// Errors of the core. All leave the core as Paddle exceptions, which the Executor forwards from its
// worker thread to Python.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace paddle_ngraph {

// Outcomes that decide how the engine continues after an error; no decision reads messages. In
// Python: paddle_ngraph.errors.ErrorCode.
enum class ErrorCode : int {
  kGeneral,
  kInt32Overflow,  // an integer overflows int32 in this run; other runs may succeed
  kOutOfBounds,    // an index is out of bounds: Paddle's kernel would access other memory
  kKernelFailed,   // a kernel of Paddle has failed in a function; in Paddle's executor it may not
};

constexpr int64_t kNoOperator = -1;

// Error of the plugin. Thrown only inside the core; the operator and the Python module convert it
// to Paddle's or Python's own exception.
class NgraphError : public std::runtime_error {
 public:
  // `op_id`: the operator that caused the error, by its index in Graph.all_ops() of Python, or
  // kNoOperator.
  explicit NgraphError(const std::string& message, ErrorCode code = ErrorCode::kGeneral,
                       int64_t op_id = kNoOperator)
      : std::runtime_error(message), code_(code), op_id_(op_id) {}

  ErrorCode code() const { return code_; }
  int64_t op_id() const { return op_id_; }

 private:
  ErrorCode code_;
  int64_t op_id_;
};

// Error for a tensor value that plain Paddle rejects too; becomes Paddle's InvalidArgument, in
// Python ValueError.
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
