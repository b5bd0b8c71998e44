// Edits of Paddle's IR for the program pass that the Python API does not offer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/program.h"
#include "paddle/pir/include/core/value.h"

namespace paddle_ngraph {

// (input name, output name) for every output of an operator that overwrites an input in place.
std::vector<std::pair<std::string, std::string>> inplace_pairs(const pir::Operation& op);

// Inserts one ngraph_engine operator before `anchor`, or at the end of `block` when `anchor` is
// null. Returns the new values: one for each of `outputs` (whose types they take), then one for
// each of `states`.
std::vector<pir::Value> insert_ngraph_engine(pir::Block* block, pir::Operation* anchor,
                                             const std::vector<pir::Value>& inputs,
                                             const std::vector<pir::Value>& states,
                                             const std::vector<pir::Value>& outputs,
                                             const std::string& graph,
                                             const std::vector<int>& interval);

// Insert an operator before `anchor` that combines values into a list, or splits a list.
pir::Value insert_combine(pir::Operation* anchor, const std::vector<pir::Value>& values);
std::vector<pir::Value> insert_split(pir::Operation* anchor, pir::Value list);

// Inserts an operator before `anchor`. Operands may be null. There is one result for each value in
// `like`, of the value's type.
std::vector<pir::Value> insert_operator(pir::Operation* anchor, const std::string& name,
                                        const std::vector<pir::Value>& operands,
                                        const std::vector<pir::Value>& like,
                                        const pir::AttributeMap& attributes);

// Replaces an operator with another one that has the same attributes and types of results.
pir::Operation* replace_operator(pir::Operation* op, const std::string& name,
                                 const std::vector<pir::Value>& operands);

// Replaces a loop or branch with one that carries one more value: its last result, and the last
// yielded value of its blocks. For a loop, `value` is the initial value of a new last block
// argument. At first the blocks yield their input unchanged: that argument, or `value`. Returns the
// operator.
pir::Operation* add_carried_value(pir::Operation* op, pir::Value value);

// Drops the loop-carried value of this index from a loop. The value must have no reader: no
// operator of the body, and none after the loop. Returns the new operator.
pir::Operation* drop_carried_value(pir::Operation* loop, uint32_t index);

// Replaces the operators of a program's block by copies of those of another program. Operators
// without operands (parameters, feeds, constants), and those that name their operands outside
// (fetches), are not replaced by equal ones: Paddle may refer to them.
void replace_contents(pir::Block* block, const pir::Program& contents);

}  // namespace paddle_ngraph
