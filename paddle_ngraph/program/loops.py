"""The initial values of loops.

Paddle's ``while`` moves its initial values out of their variables: an operator that reads one
afterwards finds no memory. Natively that depends on which operator a thread reaches first; with
intervals it would be certain. So an initial value that is read elsewhere too, or that is a variable
of the scope, is copied.
"""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.paddle_seam.protocols import Program, Value
from paddle_ngraph.program.view import SOURCES, blocks_outside_in

_LOOP = "pd_op.while"


def copy_start_values(program: Program) -> None:
    """Gives each loop of a PIR program initial values that nothing else reads."""
    loops = [op for block in blocks_outside_in(program) for op in block.ops if op.name() == _LOOP]
    for loop in loops:
        for number in range(1, loop.num_operands()):  # the first is the condition
            value = loop.operand_source(number)
            if value.is_dense_tensor_type() and _is_of_others(value):
                (copy,) = _core.insert_operator(loop, "pd_op.assign", [value], [value], {})
                loop.operand(number).set_source(copy)


def _is_of_others(value: Value) -> bool:
    maker = value.get_defining_op()
    is_variable = maker is not None and maker.name() in SOURCES
    return is_variable or len(value.all_used_ops()) > 1
