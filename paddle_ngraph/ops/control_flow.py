"""Converters of loops and branches; all operators inside must be convertible."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from openvino import Node, Output, Type, opset15

from paddle_ngraph.conversion.analysis.early_exits import EarlyExit, compute_before_exits
from paddle_ngraph.conversion.analysis.last_positions import take_last_early
from paddle_ngraph.conversion.analysis.last_values import without_twins
from paddle_ngraph.conversion.analysis.loop_invariants import hoist_invariants, only_selects
from paddle_ngraph.conversion.analysis.offsets import EARLY_EXIT
from paddle_ngraph.conversion.bodies import (
    body_of_branch,
    body_of_loop,
    declare_growth,
    require_whole,
)
from paddle_ngraph.conversion.bridge import NgraphBridge
from paddle_ngraph.conversion.errors import RunError
from paddle_ngraph.conversion.node_tools import select
from paddle_ngraph.conversion.regions import Branch, Cut, Loop
from paddle_ngraph.conversion.registry import ANY, ARRAYS, Limit, converter, find_converter
from paddle_ngraph.conversion.size_rules import is_same_shape
from paddle_ngraph.conversion.symbolic_sizes import MAX_ITERATIONS, Number
from paddle_ngraph.conversion.tensor_arrays import TensorArray, carry_read_arrays
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Op, TensorSpec
from paddle_ngraph.ops.nodes import reshaped
from paddle_ngraph.utils.dtypes import BYTES

# Tensors of dtypes that nGraph lacks or narrows pass through, as bytes for the kernels inside.
_DTYPES = ANY | ARRAYS | BYTES.keys()


def _may_have_same_shapes(one: Sequence[TensorSpec], other: Sequence[TensorSpec]) -> bool:
    """Whether tensors may have, pair by pair, equal shapes, as far as the program declares them."""
    return all(
        len(a.shape) == len(b.shape)
        and all(m == n or -1 in (m, n) for m, n in zip(a.shape, b.shape))
        for a, b in zip(one, other)
    )


# Both bodies of a branch must have results of equal shapes. The declared shapes are checked, before
# a run: the operators in a rejected branch can still form subgraphs. Loops have no such limit, as
# Paddle declares every size dynamic that an iteration changes.
_SAME_SHAPES = Limit(
    "its branches have results of several shapes",
    lambda op: _may_have_same_shapes(op.blocks[0].outputs, op.blocks[1].outputs),
)


def _samples(op: Op) -> bool:
    """Whether an operator of a block samples random numbers."""
    inner = (each for block in op.blocks for each in block.all_ops() if not each.blocks)
    return any((entry := find_converter(o.type)) is not None and entry.draws(o) for o in inner)


@converter("pd_op.while", dtypes=_DTYPES, draws=_samples)
def while_(bridge: NgraphBridge, op: Op) -> None:
    """Repeats its block while a condition is true (Paddle ``while``).

    A loop-carried value keeps its shape, or grows by equal sizes in each iteration. Each iteration
    appends equally many elements to a TensorArray.
    """
    initial_values = bridge.operands(op, "inputs")
    condition = _condition(bridge, op)
    # The loop has no iteration: its results are the initial values. OpenVINO's Loop would return
    # empty tensors.
    if _is_false(condition):
        for number, value in enumerate(initial_values):
            bridge.set_output_node(op, "out", value, number)
        return
    block, twins = without_twins(op.blocks[0], len(initial_values))
    block = compute_before_exits(block, len(initial_values) - len(twins))
    block = take_last_early(block)
    kept_values = [number for number in range(len(initial_values)) if number not in twins]
    given = [*(initial_values[number] for number in kept_values), *_captured(bridge, op)]
    specs = [*(op.inputs["inputs"][number] for number in kept_values), *op.inputs["captured"]]
    block, order = carry_read_arrays(block, len(kept_values), given)
    args = len(block.outputs) - 1
    before, block = hoist_invariants(block, args)
    sources = [given[number] for number in order]
    kept = [
        position for position, number in enumerate(order) if bridge.is_used_later(specs[number])
    ]
    firsts = [
        bridge.arrays.elements(s) if isinstance(s, TensorArray) else s for s in sources[:args]
    ]
    captured = [*sources[args:], *bridge.inline(before, sources)]
    starts_empty = any(is_same_shape([0], [n]) for start in firsts for n in bridge.shape(start))
    if starts_empty:
        condition = _require_iteration(bridge, condition)
    is_certain = starts_empty or _is_constant(condition)
    body, read, shapes = body_of_loop(bridge, block, firsts, captured, kept, is_certain)
    added = body.loop_carried - args
    shape_of = dict(zip(kept_values, shapes))
    undefined = {
        number
        for number, other in twins.items()
        if not is_same_shape(bridge.shape(initial_values[number]), shape_of[other])
    }
    if not starts_empty and (body.collected or body.has_placeholders or undefined or added):
        condition = _require_iteration(bridge, condition)
    loop = Loop(condition, read, body)
    outputs = bridge.regions.add(loop, shapes)
    if body.count is not None:
        body.count.guards.let_require(body.count, partial(_require_loop, bridge, loop, condition))
    uncut = [*outputs]
    for cut in body.cuts:
        outputs[cut.arg] = _cut(bridge, cut, condition, uncut)
    results = dict(zip(kept_values, outputs))
    for number, other in twins.items():
        results[number] = results[other]
        if number not in undefined and not _is_constant(condition):
            iterates = reshaped(bridge, condition, [])
            results[number] = select(iterates, results[other], initial_values[number])
    for number, output in results.items():
        bridge.set_output_node(op, "out", output, number)
    for array, output in zip(sources[len(kept_values) : args], outputs[len(kept_values) :]):
        array.chunks = [output]
    for position, output in zip(body.collected, outputs[body.loop_carried :]):
        _append_loop_elements(bridge, sources[position - added], output)


def _captured(bridge: NgraphBridge, op: Op) -> list[Output | TensorArray]:
    """Values of the surrounding block that the blocks of a loop or branch read."""
    return [
        bridge.arrays[spec] if spec in bridge.arrays else bridge.operand(spec)
        for spec in op.inputs.get("captured", ())
    ]


def _cut(bridge: NgraphBridge, cut: Cut, condition: Output, results: Sequence[Output]) -> Output:
    """The result of a loop without what the last iteration has added, if that is an early exit.

    Args:
        bridge: The bridge of the block around the loop.
        cut: The cut.
        condition: Whether there is an iteration.
        results: The results of the loop.
    """
    exited = bridge.full(False, Type.boolean)
    for exit in cut.exits:
        assert exit.flag is not None  # see declare_growth
        flag = reshaped(bridge, results[exit.flag], [])
        exited = opset15.logical_or(exited, flag if exit.value else opset15.logical_not(flag))
    exited = opset15.logical_and(exited, reshaped(bridge, condition, []))
    added = opset15.multiply(opset15.convert(exited, Type.i64), bridge.ints([cut.growth]))
    size = bridge.shape(results[cut.arg])[cut.axis]
    end = opset15.subtract(bridge.ints([size]), added)
    first, step, axis = (bridge.ints([number]) for number in (0, 1, cut.axis))
    kept = opset15.slice(results[cut.arg], first, end, step, axis)
    cut.grown.guards.let_require(cut.grown, partial(_require_growth, bridge, cut, kept))
    return bridge.regions.cut(kept.output(0), cut.shape)


def _require_growth(bridge: NgraphBridge, cut: Cut, kept: Node) -> None:
    """Has each run check that a result has grown, before it is cut to its size."""
    before = bridge.ints([cut.shape[cut.axis] - cut.growth * cut.grown])
    added = opset15.subtract(kept.input_value(2), before)
    error = RunError("a value that grows in a loop has not grown.")
    checked = bridge.integers.in_range(opset15.convert(added, Type.i32), 1, MAX_ITERATIONS, error)
    end = opset15.add(opset15.convert(checked, Type.i64), before)
    kept.input(2).replace_source_output(end.output(0))


def _append_loop_elements(bridge: NgraphBridge, array: TensorArray, output: Output) -> None:
    """Appends the elements that the iterations of a loop have added to a TensorArray.

    ``output`` has the elements: [iterations, elements of an iteration, ...].
    """
    iterations, count, *shape = bridge.shape(output)
    bridge.arrays.append(array, reshaped(bridge, output, [iterations * count, *shape]))


@converter("pd_op.if", dtypes=_DTYPES, limits=[_SAME_SHAPES], draws=_samples)
def if_(bridge: NgraphBridge, op: Op) -> None:
    """Runs one of two blocks (Paddle ``if``), which yield equal shapes."""
    if EARLY_EXIT in op.attrs:
        _select_unless_grown(bridge, op, op.attrs[EARLY_EXIT])
        return
    sources = _captured(bridge, op)
    if all(map(only_selects, op.blocks)):
        _select_results(bridge, op, *(bridge.inline(block, sources) for block in op.blocks))
        return
    (first, _), (second, read) = (body_of_branch(bridge, block, sources) for block in op.blocks)
    for one, other in zip(first.shapes, second.shapes):
        _require_equal(one, other, "the results of a branch have several shapes")
    if not first.shapes:
        return
    branch = Branch(_condition(bridge, op), read, [first, second])
    for number, output in enumerate(bridge.regions.add(branch, first.shapes)):
        bridge.set_output_node(op, "out", output, number)


def _select_results(
    bridge: NgraphBridge, op: Op, ones: Sequence[Output], others: Sequence[Output]
) -> None:
    """Selects between ``ones`` and ``others``, for branches that compute nothing.

    An example is a ``break`` in a loop.
    """
    condition = reshaped(bridge, _condition(bridge, op), [])
    for number, (one, other) in enumerate(zip(ones, others)):
        shapes = bridge.shape(one), bridge.shape(other)
        _require_equal(*shapes, "the results of a branch have several shapes")
        bridge.set_output_node(op, "out", select(condition, one, other), number)


def _select_unless_grown(bridge: NgraphBridge, op: Op, exit: EarlyExit) -> None:
    """Selects between a value after an iteration and that of the last one, which an exit skips.

    A grown value is the result even in the last iteration: it is cut behind the loop.
    """
    sides = bridge.get_input_nodes(op, "captured")
    after, before = sides[exit.after], sides[1 - exit.after]
    # A size may grow by 0 until the growth of the values that it follows from is known.
    if not exit.appends or is_same_shape(bridge.shape(before), bridge.shape(after)):
        require_whole(bridge, op)
        _select_results(bridge, op, *([side] for side in sides))
        return
    added = [a - b for a, b in zip(bridge.shape(after), bridge.shape(before))]
    declare_growth(bridge, op, exit, added)
    bridge.set_output_node(op, "out", after)


def _condition(bridge: NgraphBridge, op: Op) -> Output:
    """The condition of a loop or branch, as a node of rank 0 or 1."""
    condition = bridge.get_input_node(op, "cond")
    if len(bridge.shape(condition)) > 1:
        condition = opset15.reshape(condition, bridge.ints([1]), False).output(0)
    return condition


def _require_iteration(bridge: NgraphBridge, condition: Output) -> Output:
    """A loop's condition, checked by each run: without an iteration, the run falls back to Paddle.

    The plugin would return the elements that iterations of the previous run appended; other results
    would be placeholders.
    """
    if _is_constant(condition):
        return condition
    as_integer = opset15.convert(condition, Type.i32)
    error = RunError("a loop whose results are undefined without an iteration has none.")
    checked = bridge.integers.in_range(as_integer, 1, 2, error)
    return opset15.convert(checked, Type.boolean).output(0)


def _require_loop(bridge: NgraphBridge, loop: Loop, condition: Output) -> None:
    """Has each run check that a loop has an iteration."""
    loop.node.input(1).replace_source_output(_require_iteration(bridge, condition))


def _is_constant(condition: Output) -> bool:
    return condition.get_node().get_type_name() == "Constant"


def _is_false(condition: Output) -> bool:
    """Whether a condition is a constant that is false."""
    return _is_constant(condition) and not condition.get_node().get_data().any()


def _require_equal(one: Sequence[Number], other: Sequence[Number], reason: str) -> None:
    if len(one) != len(other) or any(a != b for a, b in zip(one, other)):
        raise NgraphError(f"{reason}: {list(one)} and {list(other)}")
