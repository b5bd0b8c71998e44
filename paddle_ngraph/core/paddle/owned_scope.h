// A scope of Paddle's that ends with the object that has it; Paddle keeps others for good.
#pragma once

#include <pybind11/pytypes.h>

#include <utility>

#include <sys/types.h>

namespace paddle_ngraph {

// It ends where Python drops it, in any thread, and may do so in the middle of anything. So it runs
// no Python code, which a handler of signals could come into: what that raises, Ctrl-C say, would
// be lost there, and the scope left. Needs the GIL, as all that Python drops.
class OwnedScope {
 public:
  // end: Paddle's own function that ends a scope. Nobody else has addresses in this one, and would
  // have to be told.
  OwnedScope(pybind11::object scope, pybind11::object end);
  OwnedScope(const OwnedScope&) = delete;
  OwnedScope& operator=(const OwnedScope&) = delete;

  // In a process forked from the one that made it nothing ends: executors wait there for threads
  // that they do not have, and Paddle reads the freed memory of these.
  ~OwnedScope();

  const pybind11::object& scope() const { return scope_; }

  // What has addresses in the scope, an executor say: it goes before the scope does.
  const pybind11::object& user() const { return user_; }
  void set_user(pybind11::object user) { user_ = std::move(user); }

 private:
  pybind11::object scope_, end_;
  pybind11::object user_ = pybind11::none();
  pid_t process_;
};

}  // namespace paddle_ngraph
