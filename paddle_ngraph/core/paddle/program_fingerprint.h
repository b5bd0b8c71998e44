// Tells whether a program is still the one that it was, without printing it.
#pragma once

#include <cstdint>

#include "paddle/pir/include/core/program.h"

namespace paddle_ngraph {

// A hash of the operators of a program: their kinds, attributes, operands and types of results,
// blocks inside them included. Equal for a program that nobody changed, and with all likelihood (64
// bits) only for one that prints alike. Operators and values count by their addresses, so that a
// copy of a program has another one.
uint64_t program_fingerprint(const pir::Program& program);

}  // namespace paddle_ngraph
