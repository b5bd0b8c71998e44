// Shows whether a program has changed, without printing it.
#pragma once

#include <cstdint>

#include "paddle/pir/include/core/program.h"

namespace paddle_ngraph {

// A hash of the operators of a program: their kinds, attributes, operands and types of results,
// blocks inside them included. Equal for an unchanged program, and almost certainly (64 bits) only
// for one that prints the same. Operators and values enter with their addresses, so a copy of a
// program has another hash.
uint64_t program_fingerprint(const pir::Program& program);

}  // namespace paddle_ngraph
