#include "core/lazy/call_hash.h"

#include <cstdint>
#include <cstring>
#include <functional>

#include "core/common/content_hash.h"
#include "core/lazy/lazy_tensors.h"
#include "core/lazy/python_arguments.h"
#include "core/lazy/trace.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

template <typename... Numbers>
void add(size_t* hash, Numbers... numbers) {
  ((*hash = combined_hash(*hash, static_cast<size_t>(numbers))), ...);
}

// A constant contributes its type, and its value if Python hashes objects of the type by value.
void add_constant(size_t* hash, PyObject* constant) {
  add(hash, Argument::Kind::kConstant, std::hash<const void*>()(Py_TYPE(constant)));
  if (PyFloat_CheckExact(constant)) {
    const double number = PyFloat_AS_DOUBLE(constant);
    uint64_t bits = 0;  // Python hashes a NaN by identity
    std::memcpy(&bits, &number, sizeof(bits));
    add(hash, bits);
  } else if (is_plain_python(constant)) {
    add(hash, PyObject_Hash(constant));
  }
}

// A value contributes its index, a new one its shape, too.
void add_value(size_t* hash, int value, int first_new, const phi::DDim& shape) {
  add(hash, Argument::Kind::kValue, value);
  if (value < first_new) return;
  for (int axis = 0; axis < shape.size(); ++axis) add(hash, shape[axis]);
}

void add_sequence(size_t* hash, PyTypeObject* type, size_t length) {
  add(hash, Argument::Kind::kSequence, std::hash<const void*>()(type), length);
}

void add_argument(size_t* hash, const Argument& argument, const TracedCall& call) {
  switch (argument.kind) {
    case Argument::Kind::kValue:
      return add_value(
          hash, argument.value, call.first_value,
          argument.value < call.first_value ? phi::DDim() : call.meta_of(argument.value).shape);
    case Argument::Kind::kConstant:
      return add_constant(hash, argument.constant.ptr());
    case Argument::Kind::kNumber:
    case Argument::Kind::kUninitialized:
      return add(hash, argument.kind);
    case Argument::Kind::kSequence:
      break;
  }
  add_sequence(hash, argument.type, argument.items.size());
  for (const Argument& item : argument.items) add_argument(hash, item, call);
}

void add_argument(size_t* hash, PyObject* given, Trace* trace, int depth = 0) {
  if (depth > kMaxArgumentDepth) return;  // a list may contain itself; no known call has such ones
  if (is_tensor(given)) {
    if (is_uninitialized(given)) return add(hash, Argument::Kind::kUninitialized);
    int value = trace->index_of(given);
    if (value < 0) value = trace->note_new(given);
    return add_value(hash, value, trace->num_values(), tensor_of(given).dims());
  }
  if (is_sequence(given)) {
    const PyObjects items = sequence_items(given);
    add_sequence(hash, sequence_type(given), items.size());
    for (PyObject* item : items) add_argument(hash, item, trace, depth + 1);
    return;
  }
  const py::object constant = is_foreign_number(given) ? to_python_number(given)
                                                       : py::reinterpret_borrow<py::object>(given);
  add_constant(hash, constant.ptr());
}

size_t hash_of_function(const InterceptedFunction* function, bool has_gradient, size_t arguments) {
  size_t hash = 0;
  add(&hash, std::hash<const void*>()(function), has_gradient, arguments);
  return hash;
}

}  // namespace

size_t hash_of(const TracedCall& call) {
  size_t hash = hash_of_function(call.function, call.has_gradient, call.arguments.size());
  for (const Argument& argument : call.arguments) add_argument(&hash, argument, call);
  return hash;
}

size_t hash_of(Trace* trace, const InterceptedFunction& function, bool has_gradient,
               const PyObjects& given) {
  size_t hash = hash_of_function(&function, has_gradient, given.size());
  trace->clear_new();
  for (PyObject* argument : given) add_argument(&hash, argument, trace);
  trace->clear_new();
  return hash;
}

}  // namespace paddle_ngraph
