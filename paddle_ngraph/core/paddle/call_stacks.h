// The call stacks of Python that Paddle notes for operators, and the lines of calls in progress.
#pragma once

#include <pybind11/pytypes.h>

#include <cstdint>
#include <string>
#include <vector>

#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/value.h"

namespace paddle_ngraph {

// Handles of the call stacks of all operators of a block, in its order; 0: none. Handles stay
// valid, also when the operators are gone: Paddle never frees attributes.
std::vector<uintptr_t> call_stacks_of(const pir::Block& block);

// Gives the operators that compute values the call stack of another one, unless they have their
// own.
void inherit_call_stack(const pir::Operation& source, const std::vector<pir::Value>& values);

// The frames of a call stack, the innermost one last.
std::vector<std::string> frames_of(uintptr_t call_stack);

// Whether lines of calls are noted now: while a profile is measured, or runs are verified.
bool notes_lines();

// File and line of the user's code that calls into Paddle now, as a Python string; empty if
// unknown. Requires the GIL, and calls Python.
pybind11::object calling_line();

// While a profile is measured, notes the line of a call that Paddle's kernels compute at once.
void note_native_call(const std::string& function);

}  // namespace paddle_ngraph
