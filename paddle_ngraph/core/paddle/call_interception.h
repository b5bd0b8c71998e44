// Interception of Paddle's C functions: of those that may write the eager tensors passed to them,
// and of those that Python functions replace.
//
// An operator of dynamic mode is a C function of Python, of which 3,400 are intercepted; with the
// other functions that compiled layers need, 5,700. Most write nothing, and no list of the writing
// ones would stay complete: every operator inspects its arguments, and where one has the memory of
// a weight (exposure.h, watch_weight), weights are treated as being written during the call. Both
// interceptions are installed beneath the function object, where Python finds the C function to
// call, so references taken before the interception are covered too: names imported from modules,
// bound and unbound methods, partial functions.
#pragma once

#include <pybind11/pytypes.h>

#include <string>
#include <utility>
#include <vector>

#include "core/paddle/integer_ranges.h"
#include "core/paddle/shape_rules.h"

namespace paddle_ngraph {

enum class WriteEffect {
  kArguments,  // the call may write its arguments, until it returns
  kAnyTensor,  // the call may write tensors other than its arguments
  kProgram,    // the call runs a program on its arguments, see set_next_program_read_only
  kNone,       // writes nothing
};

// The effect of a call on a capture (capture.h).
enum class CallEffect {
  kGraphBreak,           // the call needs the values of deferred operators
  kDeferrable,           // the call may be deferred itself
  kMetadataOnly,         // the call accesses metadata only: it needs no memory of tensors
  kTransparent,          // the call only calls Python, unless a gradient is wanted: PyLayer.apply
  kBreakIfLazyArgument,  // the call needs no memory, unless an argument is a lazy tensor
  kEagerOperator,        // as kBreakIfLazyArgument, for an operator, whose result is noted
  kShapeQuery,           // the call needs no memory, and its result depends on shapes only
  kDataAccess,           // a graph break, unless all its tensors are sizes or materialized
  kReadOnlyDataAccess,   // as kDataAccess, but the result gives no write access
  kGradientHook,         // the call concerns the gradient of its tensor, not the memory
  kSavedTensorHooksOn,   // from now on autograd passes each tensor that it saves to the user
  kSavedTensorHooksOff,  // from now on autograd passes no tensors to the user
  kTracerSwitch,         // the call switches between dynamic and static mode, by its argument
  kFlagChange,           // the call sets a flag that operators may depend on
};

// The property of its tensor that a method changes. After the call, the tensor is another value of
// the trace.
enum class Mutation {
  kNone,
  kValues,        // the values, and thereby whether the tensor has a gradient
  kStopGradient,  // stop_gradient, which the method sets to true
  kLayout,        // the memory, which is contiguous after the call; the method returns the tensor
};

// How an operator joins a list of tensors, which is its first argument. A list that grows may be
// joined in parts (growing_lists.h).
enum class ListRule { kNone, kStacked, kConcatenated, kSummed };

// The conditions under which a call of an operator may be deferred.
struct DeferralRule {
  size_t max_tensor_arguments = 0;  // only this many leading arguments may contain tensors
  bool requires_floats = false;     // whether all tensors have to be floating-point
  // Arguments that must have a value for a call to be deferred: (argument index, required value).
  std::vector<std::pair<size_t, pybind11::object>> required_arguments;
  // Further arguments that must have a value if gradients are enabled.
  std::vector<std::pair<size_t, pybind11::object>> required_with_gradient;
  // The required values of integer operands, and the known range of integer results.
  ValueRule value_rule;
  RangeRule range_rule;
  // The index of an argument that the operator does not read, which may be an uninitialized tensor;
  // -1: none.
  int unread_argument = -1;
  // Whether the operator has results without elements that only its gradient uses.
  bool has_reserve_space = false;
  bool is_stochastic = false;  // whether the operator generates random numbers
  // Whether NumPy scalars are treated as tensors of the dtype of the other operand.
  bool is_arithmetic = false;
  Mutation mutation = Mutation::kNone;
  // Indices of arguments for which known integer tensors are treated as lists of their elements.
  std::vector<size_t> int_list_arguments;
  ShapeRule shape_rule;
  ListRule list_rule = ListRule::kNone;
};

// Computes a call instead of Paddle, or returns null without an error to fall back to Paddle.
using Substitute = PyObject* (*)(PyObject* args, PyObject* kwargs);

// A C function of Paddle that is intercepted.
struct InterceptedFunction {
  PyCFunctionWithKeywords call = nullptr;
  Substitute substitute = nullptr;
  WriteEffect write_effect = WriteEffect::kNone;
  CallEffect effect = CallEffect::kGraphBreak;
  bool is_method = false;
  std::string name;
  DeferralRule rule;
  // The Python function that all calls are passed to, see replace_calls; null: none. It has no
  // other member but `is_method`.
  PyObject* replacement = nullptr;
};

// During its lifetime no other thread is in an intercepted function, other than those of
// kBreakIfLazyArgument, or enters one: while a program is built, Paddle's operators are appended to
// programs, in all threads. The constructor waits for 50 ms at most.
class ExclusiveSection {
 public:
  ExclusiveSection();
  ~ExclusiveSection();
  ExclusiveSection(const ExclusiveSection&) = delete;
  ExclusiveSection& operator=(const ExclusiveSection&) = delete;

  // Whether all other threads have left intercepted functions.
  bool is_exclusive() const { return is_exclusive_; }

 private:
  bool is_exclusive_ = false;
};

// Calls the function, with its write effect reported.
PyObject* call_now(const InterceptedFunction& function, PyObject* self, PyObject* args,
                   PyObject* kwargs);

// Sets `stop_gradient` of a tensor, as a deferred operator where possible. Throws Python's errors.
void set_stop_gradient(PyObject* tensor, bool on);

// The operator with the list rule kConcatenated.
const InterceptedFunction& concatenation();

// Reports calls of `function` to captures from now on, with the given effect and rule.
void set_call_effect(const pybind11::object& function, const std::string& name, CallEffect effect,
                     const DeferralRule& rule);

// Reports reads and writes of a C attribute to captures. A passive access (metadata only) needs no
// deferred operator computed. Setting `stop_gradient` to true is an operator, which may be
// deferred.
void intercept_attribute(const pybind11::object& attribute, const std::string& name,
                         bool get_is_passive, bool set_is_passive);

// Intercepts calls of `function` from now on: a C function or method that takes positional and
// keyword arguments. Without any arguments it has nothing to write. Idempotent. Throws NgraphError
// for functions of other types.
void intercept_calls(const pybind11::object& function, WriteEffect write_effect);

// Whether `function` is a C function that replace_calls can replace: a function of pybind11 or of a
// module, or a method of a C type, that takes positional and keyword arguments.
bool is_replaceable(const pybind11::object& function);

// A callable that is this function now and after replace_calls, where interception applies to it.
// Throws NgraphError for functions that are not replaceable.
pybind11::object original_of(const pybind11::object& function);

// Whether anything but its class refers to a method of Paddle's core. A call in progress does, and
// so does a bound method.
bool is_method_referenced(const pybind11::type& owner, const std::string& name);

// Passes calls of `function` through any reference to `replacement` from now on. Throws NgraphError
// for functions that are not replaceable, or were replaced before.
void replace_calls(const pybind11::object& function, const pybind11::object& replacement);

// Has intercepted calls of `function` computed by the substitute from now on. Throws NgraphError if
// the calls are not intercepted.
void substitute_calls(const pybind11::object& function, Substitute substitute);

// Whether calls of `function` are intercepted, or need not be.
bool are_calls_intercepted(const pybind11::object& function);

// Sets whether the next program that this thread runs in such a call is known to write none of its
// arguments.
void set_next_program_read_only(bool on);

}  // namespace paddle_ngraph
