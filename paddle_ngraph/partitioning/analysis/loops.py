"""What loops start from, and hand on.

By ``to_static`` a loop hands on all variables of its body. What nobody reads is let go. A loop may
start from something that holds nothing.

Paddle's ``while`` moves its initial values out of their variables: an operator that reads one
afterwards finds no memory. Natively that depends on which operator a thread reaches first; with
intervals it would be certain. So an initial value that is read elsewhere too, or that is a variable
of the scope, is copied.
"""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    SINKS,
    SOURCES,
    WHILE,
    blocks_outermost_first,
)


def drop_dead_loop_outputs(program: Program) -> None:
    """Has the loops of a PIR program hand on nothing that is read neither inside nor afterwards.

    ``for row in x`` hands ``row`` on by ``to_static``, and starts from a placeholder of another
    shape. What may still be fetched from a program stays.
    """
    for block in blocks_outermost_first(program):
        loops = [op for op in block.ops if op.name() == WHILE]
        if not loops or not any(op.name() in SINKS for op in block.ops):
            continue
        for loop in loops:
            for number in reversed(range(len(loop.results()))):
                if len(loop.results()) > 1 and _is_dead_output(loop, number):
                    loop = _core.drop_carried_value(loop, number)


def _is_dead_output(loop: Operation, number: int) -> bool:
    """Whether what a loop hands on in this place is at most handed on again there."""
    (block,) = loop.blocks()
    arg, end = block.args()[number], block.ops[-1]
    places = [n for n, value in enumerate(end.operands_source()) if value.is_same(arg)]
    return (
        loop.result(number).use_empty()
        and all(user.id() == end.id() for user in arg.all_used_ops())
        and places in ([], [number + 1])
    )


def copy_shared_initial_values(program: Program) -> None:
    """Gives each loop of a PIR program initial values that nothing else reads."""
    loops = [
        op for block in blocks_outermost_first(program) for op in block.ops if op.name() == WHILE
    ]
    for loop in loops:
        for number in range(1, loop.num_operands()):  # the first is the condition
            value = loop.operand_source(number)
            if value.is_dense_tensor_type() and _is_shared(value):
                (copy,) = _core.insert_operator(loop, "pd_op.assign", [value], [value], {})
                loop.operand(number).set_source(copy)


def _is_shared(value: Value) -> bool:
    maker = value.get_defining_op()
    is_variable = maker is not None and maker.name() in SOURCES
    return is_variable or len(value.all_used_ops()) > 1
