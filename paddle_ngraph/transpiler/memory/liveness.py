"""Liveness analysis: memory of the results of a block for a given order of its operators.

A buffer is memory that an operator allocates for a result. A buffer is freed after the last
operator that reads it, as in Paddle's interpreter. Values that outlive a run (parameters, feeds,
variables of outer blocks) are not buffers: their memory does not depend on the order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paddle_ngraph.paddle_private.protocols import Block, Operation
from paddle_ngraph.partitioning.analysis.block_view import SINKS, BlockView, OpNode, value_id
from paddle_ngraph.partitioning.analysis.static_types import Type
from paddle_ngraph.utils.dtypes import element_bytes

# Number of bytes of memory that do not matter: results with fewer bytes are not recomputed, and a
# step that adds no more than these runs as soon as its predecessors have.
MIN_SAVED_BYTES = 1024

# The operator that saves variables of a branch on a stack, for the gradient of the branch.
_PUSH = "cf.tuple_push"
_LIST_UNPACKING = frozenset({"builtin.split", "builtin.slice"})


@dataclass(eq=False)
class MemoryStep:
    """The memory use of an operator, or of a recompute of one.

    Attributes:
        node: The operator.
        allocates: The buffers that it allocates.
        reads: The buffers whose contents it reads.
        in_place: Whether Paddle may write its result over an operand without later readers.
        inner_bytes: The peak memory of its sub-blocks, in bytes.
        indirect: The buffers that it reads as members of a list, or in a sub-block.
        is_recompute: Whether the step recomputes results of an earlier step.
        substitutes: Buffers of the program -> the buffers that it reads instead.
    """

    node: OpNode
    allocates: tuple[str, ...]
    reads: frozenset[str]
    in_place: bool = False
    inner_bytes: int = 0
    indirect: frozenset[str] = frozenset()
    is_recompute: bool = False
    substitutes: Mapping[str, str] = field(default_factory=dict)

    def with_reads(self, names: Mapping[str, str]) -> MemoryStep:
        """Returns this step with the buffers that it reads replaced as in ``names``."""
        changed = {old: new for old, new in names.items() if old in self.reads and old != new}
        if not changed:
            return self
        needs = frozenset(changed.get(buffer, buffer) for buffer in self.reads)
        return replace(self, reads=needs, substitutes={**self.substitutes, **changed})


@dataclass
class Lifetimes:
    """The buffers of a block, independent of the order of its operators.

    Attributes:
        view: The block.
        steps: The operators of the block as steps, in program order.
        sizes: The bytes of each buffer.
        live_out: Buffers with readers after the block.
        values: The number of variables in each buffer.
    """

    view: BlockView
    steps: list[MemoryStep] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    live_out: set[str] = field(default_factory=set)
    values: dict[str, int] = field(default_factory=dict)
    _creation_order: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, block: Block, types: Mapping[int, Sequence[Type]], inside: Mapping[int, int]
    ) -> Lifetimes:
        """The buffers of a block.

        Args:
            block: Paddle's block.
            types: The types of the results of each operator, by its id: see :mod:`shapes`.
            inside: The peak memory of the sub-blocks of an operator, in bytes, by its id.
        """
        found = cls(BlockView(block))
        for node in found.view.nodes:
            found._add(node, types.get(node.op.id(), ()), inside.get(node.op.id(), 0))
        return found

    def buffers(self, vid: str) -> Iterator[str]:
        """The buffers that a variable uses: its own, or those of all members of a list."""
        for member in self.view.members(vid):
            root = self.view.root(member)
            producer = self.view.producer.get(root)
            if producer is not None and producer.type in _LIST_UNPACKING:
                yield from self.buffers(producer.reads[0])
            elif root in self.sizes:
                yield root

    def in_creation_order(self, buffers: Iterable[str]) -> list[str]:
        """The buffers in program order: ids are addresses, whose order is not reproducible."""
        found = list(buffers)
        if not all(buffer in self._creation_order for buffer in found):
            for buffer in self.sizes:
                self._creation_order.setdefault(buffer, len(self._creation_order))
        return sorted(found, key=self._creation_order.__getitem__)

    def total(self, buffers: Iterable[str]) -> int:
        """The total size of ``buffers``, in bytes."""
        return sum(self.sizes[buffer] for buffer in buffers)

    def usage(self, order: Sequence[MemoryStep]) -> list[int]:
        """For each step in ``order``, the size of the live buffers during the step, in bytes."""
        return usage(order, self.sizes, self.live_out)

    def peak(self, order: Sequence[MemoryStep]) -> int:
        """The peak memory, in bytes, of the block's operators if they run in this order."""
        return max(self.usage(order), default=0)

    def _add(self, node: OpNode, types: Sequence[Type], inside: int) -> None:
        reads: set[str] = set()
        indirect: set[str] = set()
        operands = {value_id(v) for v in node.op.operands_source() if v.initialized()}
        for vid in node.reads:
            if node.type == "builtin.combine" or _reads_only_shape(node, vid, self.view):
                continue
            buffers = list(self.buffers(vid))
            reads.update(buffers)
            if buffers != [vid] or vid not in operands:
                indirect.update(buffers)
        if node.type in SINKS | {_PUSH}:
            self.live_out |= reads
        in_place = {result for _, result in node.overwrites}
        allocates = []
        if not node.is_source and not node.type.startswith(("builtin.", "cf.")):
            for vid, size in _results(node.op, types):
                if vid not in in_place:
                    self.sizes[vid] = size
                    allocates.append(vid)
                if self.view.values[vid].persistable:
                    self.live_out.update(self.buffers(vid))
        for vid in node.writes:
            for buffer in self.buffers(vid):
                self.values[buffer] = self.values.get(buffer, 0) + 1
        read, others = frozenset(reads), frozenset(indirect)
        self.steps.append(
            MemoryStep(node, tuple(allocates), read, node.has_in_place_form, inside, others)
        )


def usage(steps: Sequence[MemoryStep], sizes: Mapping[str, int], live_out: set[str]) -> list[int]:
    """For each step, the bytes of the buffers that are live during it, including its results."""
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for buffer in (*step.allocates, *step.reads):
            last[buffer] = position
    last.update(dict.fromkeys(live_out, len(steps)))
    ends: list[list[str]] = [[] for _ in range(len(steps) + 1)]
    for buffer, position in last.items():
        ends[position].append(buffer)
    live, found = 0, []
    for step, ending in zip(steps, ends):
        live += sum(sizes[buffer] for buffer in step.allocates)
        found.append(live + step.inner_bytes - reused(step, set(ending), sizes))
        live -= sum(sizes[buffer] for buffer in ending)
    return found


def reused(step: MemoryStep, ending: set[str], sizes: Mapping[str, int]) -> int:
    """The bytes that a step saves by writing over an operand whose lifetime ends."""
    if not step.in_place or not step.allocates:
        return 0
    size = sizes[step.allocates[0]]
    return size if any(sizes[b] == size for b in step.reads & ending) else 0


def _results(op: Operation, types: Sequence[Type]) -> Iterator[tuple[str, int]]:
    for value, type in zip(op.results(), types):
        if value.initialized() and type is not None:
            yield value_id(value), _bytes(type)


def _bytes(type: Type) -> int:
    if isinstance(type, list):
        return sum(map(_bytes, type))
    dtype, shape = type
    return math.prod(shape) * element_bytes(dtype)


def _reads_only_shape(node: OpNode, vid: str, view: BlockView) -> bool:
    """Whether an operator reads only the shape of an operand.

    If the operand has no other readers, Paddle frees it before the operator runs.
    """
    if not node.type.startswith("pd_op.") or node.op.num_regions() > 0:
        return False
    return bool(node.op.is_no_need_buffer(view.values[vid]))
