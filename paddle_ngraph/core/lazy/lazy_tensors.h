// Lazy tensors: the results of deferred calls, which have a shape and a dtype, but no memory yet.
//
// The registries in this file belong to all threads, and are guarded by the GIL.
#pragma once

#include <pybind11/pytypes.h>

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/tensor_meta.h"

namespace paddle_ngraph {

class Capture;

// For each lazy tensor, the capture that computes it, and has a reference to it.
std::unordered_map<PyObject*, Capture*>& lazy_tensors();
// For each memory that deferred calls will read, the captures of these calls, which pin the memory.
std::unordered_map<const phi::Allocation*, std::vector<Capture*>>& readers();
// The tensors whose deferred computation failed, each with the text of the error. Never removed.
std::unordered_map<PyObject*, std::string>& failed_tensors();

inline bool is_lazy(PyObject* tensor) {
  return !lazy_tensors().empty() && lazy_tensors().count(tensor) > 0;
}

// The error with which the computation of a tensor failed; else null.
const std::string* error_of(PyObject* tensor);

// The dense CPU tensor behind a Python tensor; null for other kinds of tensors, and without memory
// or elements.
const phi::DenseTensor* plain_tensor(PyObject* object);

// Whether an object is a tensor without memory, as some operators return in some modes.
bool is_uninitialized(PyObject* object, bool allow_lazy = false);

// The dtype and shape of a tensor that has no elements, and so needs no memory; else null.
std::shared_ptr<const phi::DenseTensorMeta> empty_meta(PyObject* tensor);

// Creates a tensor object without memory, which is lazy or has no elements.
pybind11::object make_tensor(const phi::DenseTensorMeta& meta, bool stop_gradient);
// Creates a tensor object without memory or shape.
pybind11::object make_uninitialized_tensor();

// Sets a lazy tensor to its computed result. The tensor keeps its name, if the name was requested;
// else it gets `name`, not the name of a program's output, which each call would give to another
// tensor.
void materialize(paddle::Tensor* lazy, const paddle::Tensor& result, const std::string& name);

// The capture whose deferred calls must be computed before a call with these arguments, which may
// write them; null if there is none.
Capture* owner_of(const std::array<PyObject*, 3>& arguments, bool may_write);

// Whether an argument is a lazy tensor of any thread, or one whose computation failed.
bool is_any_lazy(PyObject* args, PyObject* kwargs);

// Flushes other threads if a lazy tensor of theirs is among these arguments or, where these may be
// written, if a deferred operator reads one of them. Returns false if Python's error is set.
bool flush_other_threads(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write);

}  // namespace paddle_ngraph
