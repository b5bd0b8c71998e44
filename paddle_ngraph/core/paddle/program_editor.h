// What the program pass needs of Paddle's IR that the Python API does not offer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/value.h"

namespace paddle_ngraph {

// (input name, output name) for every output that an operator writes over an input.
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

// Inserts an operator that makes a list of values, or that takes one apart, before `anchor`.
pir::Value insert_combine(pir::Operation* anchor, const std::vector<pir::Value>& values);
std::vector<pir::Value> insert_split(pir::Operation* anchor, pir::Value list);

// Inserts an operator before `anchor`. Operands may be null; the results have the types of `like`.
std::vector<pir::Value> insert_operator(pir::Operation* anchor, const std::string& name,
                                        const std::vector<pir::Value>& operands,
                                        const std::vector<pir::Value>& like,
                                        const pir::AttributeMap& attributes);

// Replaces an operator with another one that has the same attributes and types of results.
pir::Operation* replace_operator(pir::Operation* op, const std::string& name,
                                 const std::vector<pir::Value>& operands);

// Replaces a loop or branch with one that hands on one more variable: its last result, and the last
// thing that its blocks end with. A loop starts from `value`, and has a last argument for it. For
// now its blocks hand on what they were given: that argument, or `value`. Returns the operator.
pir::Operation* add_carried_value(pir::Operation* op, pir::Value value);

// Replaces a loop with one that does not hand on what it hands on in this place, which nobody
// reads: no operator of its block, and none behind it. Returns the operator.
pir::Operation* drop_carried_value(pir::Operation* loop, uint32_t index);

}  // namespace paddle_ngraph
