"""The operators of a block for reports: how they are connected, and how much work they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paddle_ngraph.ir.graph import TensorSpec
from paddle_ngraph.paddle_private import call_stacks
from paddle_ngraph.partitioning import operator_costs as costs
from paddle_ngraph.partitioning.analysis.block_view import (
    CONSTANTS,
    LISTS,
    SCOPE_NAMES,
    BlockView,
    OpNode,
    is_fed,
)

_PARAMETER_WRITER = "builtin.set_parameter"


@dataclass(frozen=True)
class OperatorReport:
    """An operator of a block.

    Attributes:
        index: The index in the block.
        type: The type.
        name: The name of a feed or of a result that the program stores; empty for others.
        inputs: The indices of operators whose results it reads.
        read, written: The tensors that it reads and computes.
        is_compute: Whether it counts in the share of converted operators.
        line: File and line of the user's code that created it; empty if unknown.
    """

    index: int
    type: str
    name: str
    inputs: Sequence[int]
    read: Sequence[TensorSpec]
    written: Sequence[TensorSpec]
    is_compute: bool
    line: str

    @property
    def results(self) -> list[str]:
        """Dtype and shape of each result."""
        return list(map(_text, self.written))

    @property
    def num_flops(self) -> int:
        """The estimated floating-point operations."""
        return costs.num_flops(self.type, self.read, self.written)

    @property
    def num_bytes(self) -> int:
        """The estimated bytes that it reads and writes."""
        return costs.num_bytes([*self.read, *self.written])


def operator_reports(view: BlockView, has_lines: bool) -> list[OperatorReport]:
    """Returns the operators of a block that run, and its feeds and fetches.

    Parameters and constants have no entry; lists are passed through: the inputs of a reader are the
    operators that computed the members.

    Args:
        view: The block, before a rewrite.
        has_lines: Whether to find the lines of user code.
    """
    return [
        OperatorReport(
            node.index,
            node.type,
            str(node.op.attrs()[SCOPE_NAMES[node.type]]) if node.type in SCOPE_NAMES else "",
            sorted({each.index for vid in node.reads for each in _producers(view, vid)}),
            _specs(view, node.reads),
            _specs(view, node.writes),
            node.is_compute,
            call_stacks.user_line(node.op) if has_lines else "",
        )
        for node in view.nodes
        if _is_shown(node)
    ]


def _is_shown(node: OpNode) -> bool:
    if node.is_source:
        return is_fed(node.op)
    return node.type not in LISTS | CONSTANTS and node.type != _PARAMETER_WRITER


def _producers(view: BlockView, vid: str) -> Iterable[OpNode]:
    node = view.producer.get(vid)
    if node is None:
        return
    if node.type in LISTS:
        for read in node.reads:
            yield from _producers(view, read)
    elif _is_shown(node):
        yield node


def _specs(view: BlockView, vids: Iterable[str]) -> list[TensorSpec]:
    members = (member for vid in vids for member in view.members(vid))
    return [view.spec(vid, 0) for vid in members if view.is_tensor(vid)]


def _text(spec: TensorSpec) -> str:
    sizes = ", ".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{spec.dtype} [{sizes}]"
