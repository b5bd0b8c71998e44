// Shows whether a program has changed, without printing it.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/pir/include/core/program.h"

namespace paddle_ngraph {

// A hash of the operators of a program: their kinds, attributes, operands and types of results,
// blocks inside them included. Equal for an unchanged program, and almost certainly (64 bits) only
// for one that prints the same. Operators and values enter with their addresses, so a copy of a
// program has another hash.
uint64_t program_fingerprint(const pir::Program& program);

// A program as it was, to be compared with what it is before each run: the same operators, and all
// that the fingerprint depends on. A run that has used all of the cache leaves the program in
// memory, where following its operators one by one takes longer than the rest of what comes before
// a run; so their memory is asked for all at once.
class ProgramState {
 public:
  explicit ProgramState(const pir::Program& program);

  // Whether it is the same program, and nothing has changed it. It may also say no where only the
  // order of attributes in their map has changed.
  bool matches(const pir::Program& program) const;

 private:
  std::vector<uint64_t> words_;   // all that was read
  std::vector<uintptr_t> lines_;  // where it lay in memory, by lines of the cache
};

}  // namespace paddle_ngraph
