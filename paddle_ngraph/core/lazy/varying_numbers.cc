#include "core/lazy/varying_numbers.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "core/lazy/python_arguments.h"

namespace paddle_ngraph {

bool is_number(PyObject* object) {
  constexpr int64_t kMaxExact = int64_t{1} << 53;
  if (!PyLong_CheckExact(object)) {
    return PyFloat_CheckExact(object) || (PyFloat_Check(object) && is_foreign_number(object));
  }
  int overflow = 0;
  const int64_t integer = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && -kMaxExact <= integer && integer <= kMaxExact;
}

bool is_integer(PyObject* object) {
  if (!PyLong_CheckExact(object)) return false;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  int overflow = 0;
  const int64_t integer = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && -kMax <= integer && integer <= kMax;
}

bool has_number_operand(const InterceptedFunction& function, const PyObjects& given) {
  // Paddle has other kernels for powers by numbers than by tensors, and results of shape [1] where
  // it divides a tensor without axes by a number.
  constexpr std::array<const char*, 4> kOthers{"__pow__", "__rpow__", "__floordiv__", "__mod__"};
  return function.rule.is_arithmetic && given.size() == 2 && is_tensor(given[0]) &&
         is_number(given[1]) && tensor_of(given[0]).dtype() == phi::DataType::FLOAT32 &&
         std::find(kOthers.begin(), kOthers.end(), function.name) == kOthers.end();
}

bool has_integer_operand(const InterceptedFunction& function, const PyObjects& given) {
  // Quotients and powers are floats, and divisors have to be known.
  constexpr std::array<const char*, 11> kNames{"__add__", "__radd__", "__sub__", "__rsub__",
                                               "__mul__", "__rmul__", "__gt__",  "__ge__",
                                               "__lt__",  "__le__",   "__eq__"};
  if (!function.rule.is_arithmetic || given.size() != 2 || !is_tensor(given[0])) return false;
  const auto dtype = tensor_of(given[0]).dtype();
  return (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32) && is_integer(given[1]) &&
         std::find(kNames.begin(), kNames.end(), function.name) != kNames.end();
}

}  // namespace paddle_ngraph
