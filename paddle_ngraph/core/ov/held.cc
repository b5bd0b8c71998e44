#include "core/ov/held.h"

#include <memory>

namespace paddle_ngraph {

Turns::Turns() : now_(std::make_unique<OfProcess>().release()) {}

Turns::~Turns() { std::unique_ptr<OfProcess>(now_.load()).reset(); }

Turns::Turn Turns::take() {
  OfProcess* now = now_;
  if (now->process != getpid()) {
    auto own = std::make_unique<OfProcess>();
    // That of the parent stays: it may be locked. If another thread was first, `now` is its own.
    if (now_.compare_exchange_strong(now, own.get())) now = own.release();
  }
  return Turn(now->mutex);
}

}  // namespace paddle_ngraph
