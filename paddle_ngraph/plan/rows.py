"""Split of feeds into equal slices of rows, and concatenation of results, without a kernel.

In a program these are Paddle's own ``split`` and ``concat``, which any executor can run. The
data-dependency engine reads a slice in place, in the memory of the feed, and concatenates results
of any dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Value
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode, is_fed, value_id
from paddle_ngraph.partitioning.analysis.placement import NATIVE, place_on
from paddle_ngraph.transpiler.building import Builder

_SPLIT, _CONCAT, _CONSTANT = "pd_op.split_with_num", "pd_op.concat", "pd_op.full"


class RowSlice(NamedTuple):
    """A slice of a variable along axis 0.

    Attributes:
        whole: The id of the variable.
        number: The index of the slice.
        num_slices: The number of equal slices.
    """

    whole: str
    number: int
    num_slices: int


def split_rows(build: Builder, whole: Value, num_slices: int) -> list[Value]:
    """Appends a split of a variable into equal slices of rows."""
    (found,) = build.results(_SPLIT, [whole, build.number(0, "int32")], num=num_slices)
    place_on(producer_of(producer_of(found[0]).operand_source(0)), NATIVE)
    return list(found)


def concat_rows(build: Builder, slices: Sequence[Value]) -> Value:
    """Appends an operator that concatenates variables along axis 0; returns the result."""
    whole: Value = build(_CONCAT, [list(slices), build.number(0, "int32")])
    place_on(producer_of(whole), NATIVE)
    return whole


def is_row_concat(view: BlockView, node: OpNode) -> bool:
    """Whether an operator is a concatenation of rows."""
    return node.type == _CONCAT and _is_along_rows(view, node)


def row_slices(view: BlockView) -> dict[str, RowSlice]:
    """All slices of rows in a block, by id."""
    found: dict[str, RowSlice] = {}
    for node in view.nodes:
        if node.type == _SPLIT and _is_along_rows(view, node):
            num_slices = node.op.attrs()["num"]
            for index, vid in _members(view, node):
                found[vid] = RowSlice(view.root(node.reads[0]), index, num_slices)
    return found


def split_feeds(view: BlockView) -> dict[OpNode, int]:
    """The feeds that :func:`split_rows` divides into slices, and how many slices of each."""
    found = {}
    for node in view.nodes:
        if node.type == _SPLIT and node.device == NATIVE and _is_along_rows(view, node):
            whole = view.producer.get(view.root(node.reads[0]))
            if whole is not None and is_fed(whole.op):
                found[whole] = node.op.attrs()["num"]
    return found


def is_row_split(view: BlockView, node: OpNode) -> bool:
    """Whether an operator is a split into rows, or a constant operand of a split or concat."""
    if node.type == _CONSTANT:
        readers = view.readers.get(node.writes[0], ())
        return all(reader.type in (_SPLIT, _CONCAT) for reader in readers)
    return node.type == _SPLIT and _is_along_rows(view, node)


def _is_along_rows(view: BlockView, node: OpNode) -> bool:
    axis = view.producer.get(node.reads[-1])
    return axis is not None and axis.type == _CONSTANT and axis.op.attrs()["value"] == 0


def _members(view: BlockView, node: OpNode) -> Iterator[tuple[int, str]]:
    """Yields (index, id) of each slice that ``builtin.split`` extracts from the result list."""
    for reader in view.readers.get(node.writes[0], ()):
        if reader.type == "builtin.split":
            yield from enumerate(map(value_id, reader.op.results()))
