"""Variables with a size that depends on data, such as the number of boxes that are left."""

from __future__ import annotations

from collections.abc import Iterator

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.conversion.kernel_calls import DATA_DEPENDENT
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    LISTS,
    REGIONS,
    BlockView,
    OpNode,
    describe,
    value_id,
)


def unsized(view: BlockView) -> frozenset[str]:
    """The variables of a block whose size depends on data, and those computed from them.

    A dynamic dimension may depend on data wherever the program does not show that it depends on the
    feeds only: the result of an operator with such an input counts as well.
    """
    found: set[str] = set()
    for node in view.nodes:
        if node.is_source or node.type in CONSTANTS:
            continue
        if not found.isdisjoint((*node.reads, *node.captured)):
            found.update(vid for vid in node.writes if _has_dynamic_shape(view, vid))
        else:
            found.update(_data_dependent(view, node))
    return frozenset(found)


def _data_dependent(view: BlockView, node: OpNode) -> Iterator[str]:
    """Yields the results of an operator with a size that depends on the contents of its inputs."""
    if (names := DATA_DEPENDENT.get(node.type)) is not None:
        results = zip(node.op.get_output_names(), node.op.results())
        yield from (value_id(v) for name, v in results if name in names and v.initialized())
    elif node.type not in LISTS | REGIONS and node.is_compute:
        is_static = not any(_has_dynamic_shape(view, vid) for vid in node.reads)
        found = [vid for vid in node.writes if is_static and _has_dynamic_shape(view, vid)]
        yield from _without_known(view, node, found) if found else ()


def _without_known(view: BlockView, node: OpNode, found: list[str]) -> Iterator[str]:
    """Yields those results in ``found`` whose number of rows does not follow from constants."""
    known: set[str] = set()
    op = describe(view, node, {})
    if isinstance(op, Op):
        for name, value in zip(node.op.get_output_names(), node.op.results()):
            if kernel_calls.rows_of(op, name, op.constants) is not None:
                known.add(value_id(value))
    yield from (vid for vid in found if vid not in known)


def _has_dynamic_shape(view: BlockView, vid: str) -> bool:
    """Whether a variable has an unknown dimension, which Paddle may declare as 0, or is a list."""
    return not view.is_tensor(vid) or not all(size > 0 for size in view.spec(vid, 0).shape)
