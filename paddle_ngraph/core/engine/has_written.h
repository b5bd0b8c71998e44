// What failed after a run had begun to write states.
#pragma once

#include <string>

#include "core/common/error.h"

namespace paddle_ngraph {

// Nobody may repeat such a run, natively or else: states would be updated twice.
class HasWritten {
 public:
  HasWritten() = default;
  HasWritten(const HasWritten&) = default;
  HasWritten& operator=(const HasWritten&) = default;
  virtual ~HasWritten() = default;
};

// `Error` as such an error.
template <typename Error>
class Written final : public Error, public HasWritten {
 public:
  explicit Written(const std::string& reason)
      : Error("the run failed while it was writing states, some of which are new now: " + reason) {}
};

}  // namespace paddle_ngraph
