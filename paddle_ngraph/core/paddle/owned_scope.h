// A Paddle scope that is destroyed with its C++ owner; scopes from Paddle's Python API are never
// destroyed.
#pragma once

#include <pybind11/pytypes.h>

#include <utility>

#include <sys/types.h>

namespace paddle_ngraph {

// The destructor runs where Python releases the object, in any thread and between any two
// instructions. So it runs no Python code, in which a signal handler could run: an exception raised
// there, such as Ctrl-C, would be lost, and the scope would leak. Needs the GIL, like any release
// of a Python object.
class OwnedScope {
 public:
  // end: Paddle's own function that destroys a scope. No object but user() may have addresses in
  // the scope, because none is notified of its end.
  OwnedScope(pybind11::object scope, pybind11::object end);
  OwnedScope(const OwnedScope&) = delete;
  OwnedScope& operator=(const OwnedScope&) = delete;

  // The scope and its user are not destroyed in a process forked from the creating one: executors
  // wait there for threads that the fork does not have, and Paddle reads the freed memory of these.
  ~OwnedScope();

  const pybind11::object& scope() const { return scope_; }

  // The object that has addresses in the scope, such as an executor: released before the scope.
  const pybind11::object& user() const { return user_; }
  void set_user(pybind11::object user) { user_ = std::move(user); }

 private:
  pybind11::object scope_, end_;
  pybind11::object user_ = pybind11::none();
  pid_t process_;
};

}  // namespace paddle_ngraph
