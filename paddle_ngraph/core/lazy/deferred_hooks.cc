#include "core/lazy/deferred_hooks.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <utility>

namespace py = pybind11;

namespace paddle_ngraph {

py::object DeferredHooks::add(const InterceptedFunction& function, PyObject* tensor, PyObject* args,
                              PyObject* kwargs) {
  calls_.push_back({&function, py::reinterpret_borrow<py::object>(tensor),
                    py::reinterpret_borrow<py::object>(args),
                    py::reinterpret_borrow<py::object>(kwargs), std::make_shared<DeferredHook>()});
  return PyTuple_GET_SIZE(args) == 0 ? py::none() : py::cast(calls_.back().hook);
}

bool DeferredHooks::remove(PyObject* hook) {
  if (!py::isinstance<DeferredHook>(hook)) return false;
  const auto wanted = py::cast<std::shared_ptr<DeferredHook>>(hook);
  const auto found = std::find_if(calls_.begin(), calls_.end(),
                                  [&](const Call& each) { return each.hook == wanted; });
  if (found == calls_.end()) return false;
  const Call removed = std::move(*found);  // destroyed last: its destructor may call Python
  calls_.erase(found);
  return true;
}

bool DeferredHooks::has(PyObject* tensor) const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [tensor](const Call& each) { return each.tensor.ptr() == tensor; });
}

void DeferredHooks::register_all() {
  for (const Call& each : release()) {
    const auto id = py::reinterpret_steal<py::object>(
        call_now(*each.function, each.tensor.ptr(), each.args.ptr(), each.kwargs.ptr()));
    if (!id) throw py::error_already_set();
    if (PyLong_Check(id.ptr())) each.hook->id = py::cast<int64_t>(id);
  }
}

py::object with_hook_ids(PyObject* args) {
  auto given = py::reinterpret_borrow<py::tuple>(args);
  const auto is_hook = [](const auto& each) { return py::isinstance<DeferredHook>(each); };
  if (std::none_of(given.begin(), given.end(), is_hook)) return given;
  py::tuple found(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    constexpr int64_t kNone = -1;  // no hook of Paddle has this id
    const py::object each = given[i];
    found[i] =
        is_hook(each) ? py::cast(py::cast<const DeferredHook&>(each).id.value_or(kNone)) : each;
  }
  return std::move(found);
}

}  // namespace paddle_ngraph
