"""Bounds on integers in the next iteration of a loop, implied by its condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from paddle_ngraph.conversion.analysis.induction_variables import CONJUNCTIONS, GREATER, LESS
from paddle_ngraph.conversion.analysis.offsets import VALUE_PRESERVING
from paddle_ngraph.partitioning.analysis.block_view import BlockView
from paddle_ngraph.utils.dtypes import Range

# Offsets by comparison x <op> y: added to the maximum of y to bound x from above, or to the minimum
# of y to bound x from below.
_UPPER_BOUND_OFFSETS = {
    **{op_type: -distance for op_type, distance in LESS.items()},
    "pd_op.equal": 0,
}
_LOWER_BOUND_OFFSETS = {**GREATER, "pd_op.equal": 0}


class VariableBounds(NamedTuple):
    """Lower and upper bound of an integer variable; ``None``: without such a bound."""

    vid: str
    lower: int | None
    upper: int | None


def bounds(
    view: BlockView, cond: str, range_of: Callable[[str], Range | None]
) -> list[VariableBounds]:
    """Returns bounds on variables of a block that hold if the variable ``cond``, a bool, is true.

    Args:
        view: The block.
        cond: The id of the condition. The condition and its operands have one element.
        range_of: Returns the minimum and maximum of a variable.
    """
    return list(_bounds(view, cond, range_of))


def _bounds(
    view: BlockView, cond: str, range_of: Callable[[str], Range | None]
) -> Iterator[VariableBounds]:
    node = view.producer.get(source(view, cond))
    if node is None:
        return
    if node.type in CONJUNCTIONS:
        for vid in node.reads:
            yield from _bounds(view, vid, range_of)
    elif node.type in _UPPER_BOUND_OFFSETS or node.type in _LOWER_BOUND_OFFSETS:
        x, y = (source(view, vid) for vid in node.reads)
        yield from _compared(
            x, range_of(y), _UPPER_BOUND_OFFSETS.get(node.type), _LOWER_BOUND_OFFSETS.get(node.type)
        )
        above, below = _LOWER_BOUND_OFFSETS.get(node.type), _UPPER_BOUND_OFFSETS.get(node.type)
        yield from _compared(
            y,
            range_of(x),
            None if above is None else -above,
            None if below is None else -below,
        )


def _compared(
    vid: str, other: Range | None, above: int | None, below: int | None
) -> Iterator[VariableBounds]:
    if other is not None:
        lower = None if below is None else other[0] + below
        upper = None if above is None else other[1] + above
        yield VariableBounds(vid, lower, upper)


def source(view: BlockView, vid: str) -> str:
    """The variable whose contents operators that preserve values pass on to ``vid``, or ``vid``."""
    while (node := view.producer.get(vid)) is not None and node.type in VALUE_PRESERVING:
        if view.is_overwritten(vid) or view.is_overwritten(node.reads[0]):
            return vid
        vid = node.reads[0]
    return vid
