// Functions of Paddle's that may write eager tensors they are given announce it.
//
// An operator of dynamic mode is a function of Python in C, and there are some 3,000. Most write
// nothing, and no list of those that do would stay complete: all of them are made to look at their
// arguments, and where one holds the memory of a weight (exposure.h, watch_weight), weights count
// as being written during the call. The look is built in beneath the function's object, where
// Python finds the C function to call. So it makes no difference who has the object, and since
// when.
#pragma once

#include <pybind11/pytypes.h>

#include <string>
#include <utility>
#include <vector>

#include "core/paddle/integer_ranges.h"

namespace paddle_ngraph {

enum class WriteEffect {
  kArguments,  // what it may write are its arguments, until it returns
  kAnyTensor,  // it may write what it is not given
  kProgram,    // it runs a program on its arguments, see set_next_program_read_only
  kNone,       // it writes nothing
};

// What a call means to a capture (capture.h).
enum class CallEffect {
  kGraphBreak,           // it needs what waits
  kDeferrable,           // it may wait itself
  kMetadataOnly,         // it needs no memory of tensors
  kBreakIfLazyArgument,  // it does not either, unless it is given one that waits
  kEagerOperator,        // the same, and it is an operator
  kShapeQuery,           // neither does it, and what it returns depends on shapes only
  kDataAccess,          // it needs what waits, unless all that it is given are such sizes, or known
  kReadOnlyDataAccess,  // the same, and nobody can write through what it returns
  kSavedTensorHooksOn,  // it has the user see all tensors that autograd keeps
  kSavedTensorHooksOff,  // no longer
  kTracerSwitch,  // it switches between dynamic and static mode, by the tracer that it is given
  kFlagChange,    // it sets a flag that operators may depend on
};

// What a method changes of its tensor, which from then on is another value of the path.
enum class Mutation {
  kNone,
  kValues,        // and with them whether it has a gradient
  kStopGradient,  // it is switched on
};

// When a call of an operator may wait.
struct DeferralRule {
  size_t max_tensor_arguments = 0;  // so many arguments, from the first on, may hold tensors
  bool requires_floats = false;     // all tensors have to be floating-point
  // Numbers of arguments, and the values that they have to have.
  std::vector<std::pair<size_t, pybind11::object>> required_arguments;
  std::vector<std::pair<size_t, pybind11::object>> required_with_gradient;  // with gradients on
  // The values that it asks of whole numbers, and what is known of those that it makes.
  ValueRule value_rule;
  RangeRule range_rule;
  // The number of an argument that the operator does not read: a tensor without memory.
  int unread_argument = -1;
  // A result without elements is of no use but to the gradient of the operator.
  bool has_reserve_space = false;
  bool is_stochastic = false;  // random numbers
  // Numbers of NumPy's count as tensors of the dtype of the other.
  bool is_arithmetic = false;
  Mutation mutation = Mutation::kNone;
  // Numbers of arguments for which tensors of whole numbers that are known count as their list.
  std::vector<size_t> int_list_arguments;
};

// Computes a call instead of Paddle, or returns null without an error: then Paddle does.
using Substitute = PyObject* (*)(PyObject* args, PyObject* kwargs);

// A function in C that was replaced.
struct InterceptedFunction {
  PyCFunctionWithKeywords call = nullptr;
  Substitute substitute = nullptr;
  WriteEffect write_effect = WriteEffect::kNone;
  CallEffect effect = CallEffect::kGraphBreak;
  bool is_method = false;
  std::string name;
  DeferralRule rule;
};

// While it lives, no other thread is in a function that was told to captures, or enters one: what
// makes a program has Paddle's operators add to programs, in all threads. It waits for 50 ms.
class ExclusiveSection {
 public:
  ExclusiveSection();
  ~ExclusiveSection();
  ExclusiveSection(const ExclusiveSection&) = delete;
  ExclusiveSection& operator=(const ExclusiveSection&) = delete;

  // Whether the others have left.
  bool is_exclusive() const { return is_exclusive_; }

 private:
  bool is_exclusive_ = false;
};

// Calls the function, announced.
PyObject* call_now(const InterceptedFunction& function, PyObject* self, PyObject* args,
                   PyObject* kwargs);

// Sets `stop_gradient` of a tensor that may wait. Throws Python's errors.
void set_stop_gradient(PyObject* tensor, bool on);

// Tells captures of calls of `function` from now on, which counts as what it was announced as.
void set_call_effect(const pybind11::object& function, const std::string& name, CallEffect effect,
                     const DeferralRule& rule);

// The same of whoever gets or sets an attribute in C. What waits need not be computed if that is
// passive. To switch `stop_gradient` on is an operator, which may wait.
void intercept_attribute(const pybind11::object& attribute, const std::string& name,
                         bool get_is_passive, bool set_is_passive);

// Has calls of `function` announced from now on: a function or method in C that takes positional
// and keyword arguments. Without any arguments it has nothing to write. Once is enough.
// Throws NgraphError for functions of other kinds.
void intercept_calls(const pybind11::object& function, WriteEffect write_effect);

// Has calls of `function`, which are announced, computed by the substitute from now on.
// Throws NgraphError if they are not announced.
void substitute_calls(const pybind11::object& function, Substitute substitute);

// Whether calls of `function` are announced, or need not be.
bool are_calls_intercepted(const pybind11::object& function);

// Whether the next program that this thread runs in such a call is known to write none of its
// arguments.
void set_next_program_read_only(bool on);

}  // namespace paddle_ngraph
