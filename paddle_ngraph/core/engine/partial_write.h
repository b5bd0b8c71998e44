// What failed after a run had begun to write states.
#pragma once

#include <string>

#include "core/common/error.h"

namespace paddle_ngraph {

// Nobody may repeat such a run, natively or else: states would be updated twice.
class PartialWrite {
 public:
  PartialWrite() = default;
  PartialWrite(const PartialWrite&) = default;
  PartialWrite& operator=(const PartialWrite&) = default;
  virtual ~PartialWrite() = default;
};

// `Error` as such an error.
template <typename Error>
class AfterPartialWrite final : public Error, public PartialWrite {
 public:
  explicit AfterPartialWrite(const std::string& reason)
      : Error("the run failed while it was writing states, some of which are new now: " + reason) {}
};

}  // namespace paddle_ngraph
