#include "core/lazy/varying_numbers.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "paddle/phi/api/include/tensor.h"

#include "core/lazy/call_hash.h"
#include "core/lazy/python_arguments.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// The number of different values that are constants before the number is an input.
constexpr int kMaxConstants = 3;

}  // namespace

bool is_number(PyObject* object) {
  constexpr int64_t kMaxExact = int64_t{1} << 53;
  if (!PyLong_CheckExact(object)) {
    return PyFloat_CheckExact(object) || (PyFloat_Check(object) && is_foreign_number(object));
  }
  int overflow = 0;
  const int64_t integer = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 && -kMaxExact <= integer && integer <= kMaxExact;
}

bool has_number_operand(const InterceptedFunction& function, const std::vector<PyObject*>& given) {
  // Paddle has other kernels for powers by numbers than by tensors, and results of shape [1] where
  // it divides a tensor without axes by a number.
  constexpr std::array<const char*, 4> kOthers{"__pow__", "__rpow__", "__floordiv__", "__mod__"};
  return function.rule.is_arithmetic && given.size() == 2 && is_tensor(given[0]) &&
         is_number(given[1]) && tensor_of(given[0]).dtype() == phi::DataType::FLOAT32 &&
         std::find(kOthers.begin(), kOthers.end(), function.name) == kOthers.end();
}

void count_number(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                  const std::vector<PyObject*>& given) {
  const size_t hash = hash_of(trace, function, has_gradient, {given[0]});
  ++trace->node().constants_by_hash[hash];
}

bool is_number_varying(Trace* trace, const InterceptedFunction& function, bool has_gradient,
                       const std::vector<PyObject*>& given) {
  const auto& constants = trace->node().constants_by_hash;
  if (constants.empty()) return false;
  const auto found = constants.find(hash_of(trace, function, has_gradient, {given[0]}));
  return found != constants.end() && found->second >= kMaxConstants;
}

const InterceptedFunction& replace_number(const InterceptedFunction& function,
                                          std::vector<PyObject*>* given,
                                          std::vector<py::object>* copies) {
  const double number = PyFloat_AsDouble((*given)[1]);
  auto tensor = paddle::empty({}, phi::DataType::FLOAT32, phi::CPUPlace());
  *tensor.data<float>() = static_cast<float>(number);
  copies->push_back(py::reinterpret_steal<py::object>(new_python_tensor(tensor)));
  (*given)[1] = copies->back().ptr();
  if (function.name != "__mul__" && function.name != "__rmul__") return function;
  copies->push_back(py::float_(0.0));
  given->insert(given->end(), {copies->back().ptr(), Py_True});  // the bias is added last
  return scale_operator();
}

}  // namespace paddle_ngraph
