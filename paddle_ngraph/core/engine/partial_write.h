// Base class that marks errors thrown after a run has begun to write states.
#pragma once

#include <exception>
#include <string>

#include "core/common/error.h"

namespace paddle_ngraph {

// Tag of an error of a run that has already written states. The run must not be repeated, neither
// by the engine nor by Paddle: states would be updated twice.
class PartialWrite {
 public:
  PartialWrite() = default;
  PartialWrite(const PartialWrite&) = default;
  PartialWrite& operator=(const PartialWrite&) = default;
  virtual ~PartialWrite() = default;
};

// An error of the type `Error` that also is a PartialWrite, with code and operator of its reason.
template <typename Error>
class AfterPartialWrite final : public Error, public PartialWrite {
 public:
  explicit AfterPartialWrite(const NgraphError& error)
      : Error(message(error.what()), error.code(), error.op_id()) {}
  explicit AfterPartialWrite(const std::exception& error) : Error(message(error.what())) {}

 private:
  static std::string message(const char* reason) {
    return concat("the run failed while it was writing states, some of which are new now: ",
                  reason);
  }
};

}  // namespace paddle_ngraph
