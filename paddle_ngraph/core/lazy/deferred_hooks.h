// Hooks on the gradients of lazy tensors. Autograd does not know these tensors yet, so that their
// hooks are registered once they are computed: before any backward pass, which needs them computed.
#pragma once

#include <pybind11/pytypes.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

// Stands for the id of a hook, which is known later.
struct DeferredHook {
  std::optional<int64_t> id;
};

// The calls of one capture that have registered hooks, or had the gradient kept, in their order.
class DeferredHooks {
 public:
  // Notes a call. Returns a DeferredHook, or None for a call without arguments (`retain_grads`).
  pybind11::object add(const InterceptedFunction& function, PyObject* tensor, PyObject* args,
                       PyObject* kwargs);
  // Drops the call that has returned this object. Returns false if there is none.
  bool remove(PyObject* hook);
  bool has(PyObject* tensor) const;

  // Makes the calls, whose tensors are computed now. Throws Python's errors.
  void register_all();
  // The calls, which are forgotten: for the caller to destroy, since destructors may call Python.
  auto release() { return std::exchange(calls_, {}); }

 private:
  struct Call {
    const InterceptedFunction* function;
    pybind11::object tensor, args, kwargs;
    std::shared_ptr<DeferredHook> hook;
  };
  std::vector<Call> calls_;
};

// The arguments of a call, with ids in place of DeferredHooks.
pybind11::object with_hook_ids(PyObject* args);

}  // namespace paddle_ngraph
