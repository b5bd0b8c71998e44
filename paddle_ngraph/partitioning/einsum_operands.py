"""What ``einsum`` hands to its gradient.

Paddle's kernel hands on its operands as it has rearranged them (``inner_cache``), and beside them
tensors without contents that only tell their shapes (``xshape``). Where the latter hold the
operands, the gradient can be computed without the former, natively too: wherever either operator
runs, the other one need not know.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first

_EINSUM = "pd_op.einsum"
_XSHAPE = 2  # its place among the results


def give_gradients_operands(program: Program) -> None:
    """Has the gradients of ``einsum`` in a PIR program, or in the one behind it, get its operands.

    They are copied: what they were may be overwritten before the gradient is computed.
    """
    found = [
        op for block in blocks_outermost_first(program) for op in block.ops if op.name() == _EINSUM
    ]
    for op in found:
        shapes = op.results()[_XSHAPE]
        if shapes.initialized() and not shapes.use_empty():
            _replace(shapes, list(_copies(op)), op)


def _copies(op: Operation) -> Iterator[Value]:
    for operand in producer_of(op.operand_source(0)).operands_source():
        yield from _core.insert_operator(op, "pd_op.assign", [operand], [operand], {})


def _replace(shapes: Value, copies: list[Value], op: Operation) -> None:
    """Has ``copies`` read instead of the members of ``shapes``."""
    for user in shapes.all_used_ops():
        if user.name() == "builtin.split":
            for member, copy in zip(user.results(), copies, strict=True):
                member.replace_all_uses_with(copy)
    (joined,) = _core.insert_operator(op, "builtin.combine", copies, [shapes], {})
    shapes.replace_all_uses_with(joined)
