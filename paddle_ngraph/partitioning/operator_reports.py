"""The operators of a block for reports: how they are connected, and how much work they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

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
from paddle_ngraph.partitioning.analysis.static_types import Shapes, types_of_variables

_HIDDEN = LISTS | CONSTANTS | {"builtin.set_parameter"}


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


class BlockOperators:
    """The operators of a block that run, and its feeds and fetches, as reports when asked for.

    Parameters and constants have no report; lists are passed through: the inputs of a reader are
    the operators that computed the members.

    Args:
        view: The block, of which nothing is read later: the program may be rewritten, or gone.
        shapes: The shapes of some feeds, from which those of results follow.

    Attributes:
        shapes: These shapes.
        call_stacks: Handles of the call stacks of all operators by index, see
            :mod:`paddle_ngraph.paddle_private.call_stacks`.
    """

    def __init__(self, view: BlockView, shapes: Shapes = MappingProxyType({})) -> None:
        self.shapes = shapes
        self.call_stacks = call_stacks.stacks_of(view.block)
        self._shown = {node.index: node for node in view.nodes if _is_shown(node)}
        self._producer = view.producer
        self._names = {
            index: str(node.op.attrs()[SCOPE_NAMES[node.type]])
            for index, node in self._shown.items()
            if node.type in SCOPE_NAMES
        }
        read = {vid for node in self._shown.values() for vid in (*node.reads, *node.writes)}
        self._types = {vid: view.tensor_types(vid) for vid in read}
        if shapes:
            known = types_of_variables(view.block, shapes)
            self._types |= {vid: types for vid, types in known.items() if vid in read}

    @cached_property
    def reports(self) -> list[OperatorReport]:
        """The reports, in program order."""
        return [
            OperatorReport(
                index,
                node.type,
                self._names.get(index, ""),
                sorted({each for vid in node.reads for each in self._producers(vid)}),
                self._specs(node.reads),
                self._specs(node.writes),
                node.is_compute,
                call_stacks.user_line(self.call_stacks[index]),
            )
            for index, node in self._shown.items()
        ]

    def _specs(self, vids: Sequence[str]) -> list[TensorSpec]:
        return [TensorSpec(0, *each) for vid in vids for each in self._types[vid]]

    def _producers(self, vid: str) -> Iterable[int]:
        node = self._producer.get(vid)
        if node is None:
            return
        if node.type in LISTS:
            for read in node.reads:
                yield from self._producers(read)
        elif node.index in self._shown:
            yield node.index


def _is_shown(node: OpNode) -> bool:
    if node.is_source:
        return is_fed(node.op)
    return node.type not in _HIDDEN


def _text(spec: TensorSpec) -> str:
    sizes = ", ".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{spec.dtype} [{sizes}]"
