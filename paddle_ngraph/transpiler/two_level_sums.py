"""All-reduces in two levels: inside each machine, and between machines.

A ring through n ranks transfers 2 (n - 1) / n of a bucket over the network of each machine; in two
levels m machines transfer 2 (m - 1) / m, which is less. The ranks of a machine sum the bucket; each
sums a slice of it with the ranks of its number on the other machines; and the slices are put
together in the machine, by a sum with zeros. All results are equal on all ranks, but the order of
the additions is another one than in a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddle_ngraph.paddle_private.names import producer_of
from paddle_ngraph.paddle_private.protocols import Block, Operation, Program, Value
from paddle_ngraph.partitioning.analysis.block_view import (
    RING_ATTRIBUTE,
    blocks_outermost_first,
    dtype_name,
)
from paddle_ngraph.partitioning.analysis.placement import device_of, place_on
from paddle_ngraph.transpiler.building import Builder

ALL_REDUCE = "pd_op.all_reduce_"


@dataclass(frozen=True)
class TwoLevels:
    """The place of a rank in a plan of two levels.

    Attributes:
        local_rank: The rank in its machine.
        local_ranks: The number of ranks of each machine.
        inside: The ring id of the ranks of the machine.
        between: The ring id of the ranks with this number on all machines.
    """

    local_rank: int
    local_ranks: int
    inside: int
    between: int

    def bounds(self, length: int) -> tuple[int, int]:
        """The slice of a bucket that this rank sums with other machines."""
        first, last = (
            length * number // self.local_ranks for number in (self.local_rank, self.local_rank + 1)
        )
        return first, last


def buckets(program: Program, ring: int, local_ranks: int) -> list[tuple[int, str]]:
    """The length and dtype of each all-reduce of a ring that two levels can replace."""
    found = (op.operand_source(0) for _, op in _all_reduces(program, ring, local_ranks))
    return [(value.shape[0], dtype_name(value.dtype)) for value in found]


def replace_all_reduces(program: Program, ring: int, plan: TwoLevels) -> list[Operation]:
    """Replaces each all-reduce of a ring by a sum in two levels; returns the new collectives."""
    made: list[Operation] = []
    for block, op in list(_all_reduces(program, ring, plan.local_ranks)):
        sums = _sums(Builder(block, before=op), op.operand_source(0), ring, plan)
        made += map(producer_of, sums)
        if device := device_of(op):
            for each in sums:
                place_on(producer_of(each), device)
        op.result(0).replace_all_uses_with(sums[-1])
        block.remove_op(op)
    return made


def _all_reduces(program: Program, ring: int, least: int) -> Iterator[tuple[Block, Operation]]:
    """The sums of flat tensors of a length of at least ``least``."""
    for block in blocks_outermost_first(program):
        for op in block.ops:
            if op.name() == ALL_REDUCE and op.attrs()[RING_ATTRIBUTE] == ring:
                shape = list(op.operand_source(0).shape)
                if len(shape) == 1 and shape[0] >= least and op.attrs()["reduce_type"] == 0:
                    yield block, op


def _sums(build: Builder, flat: Value, ring: int, plan: TwoLevels) -> list[Value]:
    """The results of the collectives that sum a bucket over all ranks; the last is the sum.

    Paddle has each collective use the ring of its own when it prepares a program, which is
    ``ring`` for all here; a run selects others, and this one at the end.
    """
    length, dtype = flat.shape[0], dtype_name(flat.dtype)
    first, last = plan.bounds(length)
    inside = build.selected_ring(flat, plan.inside)
    local = _sum(build, inside, ring)
    sizes = [first, last - first, length - last]
    parts = build.unflattened(local, [[size] for size in sizes if size])
    between = build.selected_ring(parts[int(first > 0)], plan.between)
    part = _sum(build, between, ring)
    around = [build.zeros([size], dtype) if size else None for size in (first, length - last)]
    rows = [row for row in (around[0], part, around[1]) if row is not None]
    again = build.selected_ring(build.flat(rows), plan.inside)
    whole = _sum(build, again, ring)
    return [inside, local, between, part, again, whole, build.selected_ring(whole, ring)]


def _sum(build: Builder, value: Value, ring: int) -> Value:
    result: Value = build(ALL_REDUCE, [value], ring_id=ring, reduce_type=0)
    return result
