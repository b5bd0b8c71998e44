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

#include "core/paddle/positions.h"

namespace paddle_ngraph {

enum class Announced {
  kArguments,  // what it may write are its arguments, until it returns
  kAnything,   // it may write what it is not given
  kProgram,    // it runs a program on its arguments, see set_next_run_reads
  kNothing,    // it writes nothing
};

// What a call means to a capture (capture.h).
enum class Captured {
  kBreak,      // it needs what waits
  kOperator,   // it may wait itself
  kPassive,    // it needs no memory of tensors
  kAside,      // it does not either, unless it is given one that waits
  kOfKnown,    // the same, and it is an operator
  kSizes,      // neither does it, and what it returns depends on shapes only
  kOfNumbers,  // it needs what waits, unless all that it is given are such sizes, or known
  kLooking,    // the same, and nobody can write through what it returns
  kShowing,    // it has the user see all tensors that autograd keeps
  kHiding,     // no longer
  kSwitching,  // it switches between dynamic and static mode, by the tracer that it is given
  kSetting,    // it sets a flag that operators may depend on
};

// What a method changes of its tensor, which from then on is another value of the path.
enum class Changes {
  kNothing,
  kNumbers,       // and with them whether it has a gradient
  kStopGradient,  // it is switched on
};

// When a call of an operator may wait.
struct WaitRule {
  size_t most_tensors = 0;    // so many arguments, from the first on, may hold tensors
  bool needs_floats = false;  // all tensors have to be floating-point
  // Numbers of arguments, and the values that they have to have.
  std::vector<std::pair<size_t, pybind11::object>> needed;
  std::vector<std::pair<size_t, pybind11::object>> needed_to_train;  // with gradients on
  // The values that it asks of whole numbers, and what is known of those that it makes.
  ValueRule values;
  NumberRule numbers;
  // The number of an argument that the operator does not read: a tensor without memory.
  int unread = -1;
  // A result without elements is of no use but to the gradient of the operator.
  bool has_reserve = false;
  bool draws = false;  // random numbers
  // Numbers of NumPy's count as tensors of the dtype of the other.
  bool is_arithmetic = false;
  Changes changes = Changes::kNothing;
  // Numbers of arguments for which tensors of whole numbers that are known count as their list.
  std::vector<size_t> lists;
};

// Computes a call instead of Paddle, or returns null without an error: then Paddle does.
using Substitute = PyObject* (*)(PyObject* args, PyObject* kwargs);

// A function in C that was replaced.
struct AnnouncedFunction {
  PyCFunctionWithKeywords call = nullptr;
  Substitute substitute = nullptr;
  Announced what = Announced::kNothing;
  Captured captured = Captured::kBreak;
  bool is_method = false;
  std::string name;
  WaitRule rule;
};

// While it lives, no other thread is in a function that was told to captures, or enters one: what
// makes a program has Paddle's operators add to programs, in all threads. It waits for 50 ms.
class Alone {
 public:
  Alone();
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

  // Whether the others have left.
  bool is_alone() const { return is_alone_; }

 private:
  bool is_alone_ = false;
};

// Calls the function, announced.
PyObject* call_now(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                   PyObject* kwargs);

// Sets `stop_gradient` of a tensor that may wait. Throws Python's errors.
void set_stop_gradient(PyObject* tensor, bool on);

// Tells captures of calls of `function` from now on, which counts as what it was announced as.
void tell_captures(const pybind11::object& function, const std::string& name, Captured captured,
                   const WaitRule& rule);

// The same of whoever gets or sets an attribute in C. What waits need not be computed if that is
// passive. To switch `stop_gradient` on is an operator, which may wait.
void tell_captures_of_attribute(const pybind11::object& attribute, const std::string& name,
                                bool get_is_passive, bool set_is_passive);

// Has calls of `function` announced from now on: a function or method in C that takes positional
// and keyword arguments. Without any arguments it has nothing to write. Once is enough.
// Throws NgraphError for functions of other kinds.
void announce_calls(const pybind11::object& function, Announced what);

// Has calls of `function`, which are announced, computed by the substitute from now on.
// Throws NgraphError if they are not announced.
void substitute_calls(const pybind11::object& function, Substitute substitute);

// Whether calls of `function` are announced, or need not be.
bool are_calls_announced(const pybind11::object& function);

// Whether the next program that this thread runs in such a call is known to write none of its
// arguments.
void set_next_run_reads(bool on);

}  // namespace paddle_ngraph
