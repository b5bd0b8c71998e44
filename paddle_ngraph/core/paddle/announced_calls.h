// Functions of Paddle's that may write eager tensors they are given announce it.
//
// An operator of dynamic mode is a function of Python in C, and there are some 3,000. Most write
// nothing, and no list of those that do would stay complete: all of them are made to look at their
// arguments, and where one holds the memory of a weight (exposure.h, watch_weight), weights count
// as being written during the call. The look is built in beneath the function's object, where
// Python finds the C function to call. So it makes no difference who has the object, and since
// when.
#pragma once

#include <pybind11/pybind11.h>

namespace paddle_ngraph {

enum class Announced {
  kArguments,  // what it may write are its arguments, until it returns
  kAnything,   // it may write what it is not given
  kKept,       // it may write its arguments at any time from now on
  kProgram,    // it runs a program on its arguments, see set_next_run_reads
};

// Has calls of `function` announced from now on: a function or method in C that takes positional
// and keyword arguments. Without any arguments it has nothing to write. Once is enough.
// Throws NgraphError for functions of other kinds.
void announce_calls(const pybind11::object& function, Announced what);

// Whether calls of `function` are announced, or need not be.
bool are_calls_announced(const pybind11::object& function);

// Whether the next program that this thread runs in such a call is known to write none of its
// arguments.
void set_next_run_reads(bool on);

}  // namespace paddle_ngraph
