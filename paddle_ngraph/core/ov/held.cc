#include "core/ov/held.h"

#include <memory>

#include <unistd.h>

namespace paddle_ngraph {

Turns::Turns() : now_(new OfProcess{getpid(), {}}) {}

Turns::~Turns() { delete now_.load(); }

Turns::Turn Turns::take() {
  OfProcess* now = now_;
  if (now->process != getpid()) {
    auto own = std::unique_ptr<OfProcess>(new OfProcess{getpid(), {}});
    // That of the parent stays: it may be locked. If another thread was first, `now` is its own.
    if (now_.compare_exchange_strong(now, own.get())) now = own.release();
  }
  return Turn(now->mutex);
}

}  // namespace paddle_ngraph
