"""The initial values of loops: which are copied, and which hold nothing.

Paddle's ``while`` moves its initial values out of their variables: an operator that reads one
afterwards finds no memory. Natively that depends on which operator a thread reaches first; with
intervals it would be certain. So an initial value that is read elsewhere too, or that is a variable
of the scope, is copied.
"""

from __future__ import annotations

from paddle_ngraph import _core
from paddle_ngraph.paddle_seam.protocols import Operation, Program, Value
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


def starts_from_nothing(loop: Operation) -> bool:
    """Whether a loop always starts from an empty tensor, as far as operators show that.

    Paddle declares the sizes open that a turn changes.
    """
    return any(
        (maker := _maker(loop.operand_source(number))) is not None
        and maker.name() == "pd_op.full"
        and 0 in maker.attrs()["shape"]
        for number in range(1, loop.num_operands())
    )


def _maker(value: Value) -> Operation | None:
    """What makes a value, or what it is a copy of."""
    maker = value.get_defining_op()
    while maker is not None and maker.name() == "pd_op.assign":
        maker = maker.operand_source(0).get_defining_op()
    return maker


def _is_of_others(value: Value) -> bool:
    maker = value.get_defining_op()
    is_variable = maker is not None and maker.name() in SOURCES
    return is_variable or len(value.all_used_ops()) > 1
