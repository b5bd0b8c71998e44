// The kernel call of Paddle's executor for an operator, as plain data, so that a C++ program can
// repeat the call. Called from Python, with the GIL.
#pragma once

#include <pybind11/pytypes.h>

#include <string>

#include "paddle/pir/include/core/program.h"

namespace paddle_ngraph {

// The call of the only operator `name` in a program of one block, which Paddle lowers as it does
// before a run. A dictionary:
//   kernel, dtype      the key that selects the kernel
//   infer_meta         the function of PHI that computes dtypes and shapes of the results
//   lists              the operands that are lists, by index
//   scalars            the operands that are read as attributes of one number, by index
//   kernel_inputs, meta_inputs          the operands that these read, by index
//   kernel_attributes, meta_attributes  pairs: (type, value), or ("operand", index) for an operand
//                                       that is read as an attribute
// Throws NgraphError where no kernel of libphi can be called like this.
pybind11::dict kernel_call(pir::Program* program, const std::string& name);

}  // namespace paddle_ngraph
