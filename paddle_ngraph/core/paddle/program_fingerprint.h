// Detects changes of a program, and equal programs, without printing them.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/pir/include/core/program.h"

#include "core/common/blake3.h"

namespace paddle_ngraph {

// A hash of the operators of a program: their names, attributes, operands and result types,
// including nested blocks. Equal for an unchanged program, and almost certainly (64 bits) only for
// one that prints identically. Addresses of operators and values are hashed, so a copy of a program
// has another hash.
uint64_t program_fingerprint(const pir::Program& program);

// A digest of the contents of a program: equal for programs with equal operators, attributes and
// types, whose operands come from the corresponding operators; so for a copy, and for a program
// that was loaded again. Valid in one process: types and attributes are identified by their
// addresses, which Paddle's context never frees.
Digest program_digest(const pir::Program& program);

// A snapshot of a program, compared with the program before each run: its operators, and all inputs
// of the fingerprint. A run that has used all of the cache leaves the program in main memory, where
// following its operators one by one takes longer than the rest of the work before a run; so all
// their cache lines are requested at once.
class ProgramState {
 public:
  explicit ProgramState(const pir::Program& program);

  // Whether `program` is the snapshot's program, unchanged. May return false although only the
  // order of attributes in their map has changed.
  bool matches(const pir::Program& program) const;

 private:
  std::vector<uint64_t> words_;   // all words of the program that the snapshot has read, in order
  std::vector<uintptr_t> lines_;  // addresses of the cache lines in which these words are
};

}  // namespace paddle_ngraph
