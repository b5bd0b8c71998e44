"""Saved forward state of ``einsum`` for its gradient.

Paddle's kernel saves the rearranged operands (``inner_cache``), and tensors without contents that
only carry the shapes of the operands (``xshape``). With the operands themselves in ``xshape``, the
gradient needs no ``inner_cache``, in Paddle's kernel too: the operator and its gradient can each
run in the engine or in Paddle, independently.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddle_ngraph import _core
from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import blocks_outermost_first

_EINSUM = "pd_op.einsum"
_XSHAPE = 2  # the index of the result ``xshape`` of ``einsum``


def give_gradients_operands(program: Program) -> None:
    """Passes the operands of ``einsum`` to its gradients, in this or in the backward program.

    The operands are copied: the originals may be overwritten before the gradient is computed.
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
    """Replaces a list ``shapes``, and the members that are extracted from it, by ``copies``."""
    for user in shapes.all_used_ops():
        if user.name() == "builtin.split":
            for member, copy in zip(user.results(), copies):
                member.replace_all_uses_with(copy)
    (joined,) = _core.insert_operator(op, "builtin.combine", copies, [shapes], {})
    shapes.replace_all_uses_with(joined)
