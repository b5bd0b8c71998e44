// Serialization of Paddle's operators to plain data and back: the fields of a graph string that
// converters do not read. All functions are called from Python, with the GIL.
#pragma once

#include <pybind11/pytypes.h>

#include <string>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"
#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/value.h"

namespace paddle_ngraph {

// (name, kind, value) of every attribute that a kernel may read. The value is a bool, number,
// string or list; the kind names Paddle's type where the value does not show it: None, or "int64",
// "float64", "index", "dtype", "layout", "ints". Throws NgraphError for attributes without such a
// representation.
pybind11::list attributes_of(const pir::Operation& op);

// The type of every result: (dtype, shape), a list of them, or None for an absent one. Throws
// NgraphError for anything that is not a dense tensor.
pybind11::list result_types(const pir::Operation& op);

// The result types that Paddle infers from the operands. The program may declare less precise ones:
// the initial value of a loop-carried value may be declared with dynamic dimensions. Updates the
// declared types of lists among the operands.
pybind11::list inferred_types(const pir::Operation& op);

// Inserts an operator into `block`, before the operator `before`, or at the end. Operands are
// values, lists of values, or None; `types` as in result_types, or None to let Paddle infer them
// from the operands; `attributes` as in attributes_of. Returns the results, with lists split into
// values.
pybind11::list append_operator(pir::Block* block, const std::string& name,
                               const pybind11::list& operands, const pybind11::object& types,
                               const pybind11::list& attributes, pir::Operation* before = nullptr);

// Appends a loop to `block`. Returns (body, loop-carried arguments of the body, results).
pybind11::tuple append_while(pir::Block* block, const pir::Value& condition,
                             const std::vector<pir::Value>& initial_values);

// Appends a branch to `block`, with results of these types. Returns (true body, false body,
// results).
pybind11::tuple append_if(pir::Block* block, const pir::Value& condition,
                          const pybind11::list& types);

// Appends the terminator `cf.yield`, with the yielded values, to the block of a loop or branch.
void append_yield(pir::Block* block, const std::vector<pir::Value>& values);

// Inserts an operator that names a variable of the scope, which a run reads and may write to.
pir::Value append_variable(pir::Block* block, const std::string& name, const pybind11::tuple& type,
                           pir::Operation* before = nullptr);

}  // namespace paddle_ngraph
