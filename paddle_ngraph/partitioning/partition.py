"""The convertible operators of a block in as few intervals as the dependencies allow.

Every operator gets a level: interval ``k`` runs before the native operators of level ``k``, and
these before interval ``k + 1``. An operator that cannot be converted and does not depend on the
middle of an interval therefore never splits it. An operator is moved to the latest interval it may
be in, which keeps its results inside.

Where operators are placed on devices, an interval has operators of one device. It begins where data
comes from another device, and ends where another device waits for data: so intervals of two devices
run at the same time wherever their operators could. It also ends at a collective that is placed on
the link, so that what comes later in the program can run meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paddle_ngraph.partitioning.analysis import dependencies
from paddle_ngraph.partitioning.analysis.block_view import LISTS, OpNode
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.analysis.placement import LINK_DEVICE


@dataclass
class Interval:
    """Operators that one engine operator stands for, in program order; all on one device."""

    level: int
    nodes: list[OpNode]

    @property
    def device(self) -> str:
        """Where they are placed; empty: nowhere in particular."""
        return self.nodes[0].device

    @property
    def range(self) -> list[int]:
        """First and last position in the operator list."""
        return [self.nodes[0].index, self.nodes[-1].index]


@dataclass
class _Edge:
    source: OpNode
    must_separate: bool = False  # the two may not share an interval


class Partition(NamedTuple):
    """The intervals of a block, and the level of every operator."""

    intervals: list[Interval]
    levels: Mapping[OpNode, int]


def partition(capable: Capability) -> Partition:
    """Groups the convertible operators into intervals."""
    levels = _levels(capable)
    members: dict[tuple[int, str], list[OpNode]] = {}
    for node in capable.view.nodes:
        if capable.can_convert(node) and node not in capable.constants:
            members.setdefault((levels[node], node.device), []).append(node)
    return Partition([Interval(key[0], members[key]) for key in sorted(members)], levels)


def _levels(capable: Capability) -> dict[OpNode, int]:
    edges = _dependencies(capable)
    levels: dict[OpNode, int] = {}
    first = 0  # after the collectives so far
    for node in capable.view.nodes:
        converted = capable.can_convert(node)
        level = first if converted else -1
        for edge in edges[node]:
            step = 0
            if converted:
                step = 1 if edge.must_separate or not capable.can_convert(edge.source) else 0
            level = max(level, levels[edge.source] + step)
        levels[node] = level
        if node.device == LINK_DEVICE:
            first = max(first, level + 1)
    if not any(node.device for node in capable.ops):
        _delay_operators(capable, edges, levels)  # which makes other devices wait
    return levels


def _delay_operators(
    capable: Capability, edges: dict[OpNode, list[_Edge]], levels: dict[OpNode, int]
) -> None:
    latest: dict[OpNode, int] = {}
    for node in reversed(capable.view.nodes):
        if capable.can_convert(node):
            levels[node] = max(levels[node], latest.get(node, levels[node]))
        for edge in edges[node]:
            if node.type in LISTS or not capable.can_convert(edge.source):
                continue
            bound = levels[node] - (1 if edge.must_separate and capable.can_convert(node) else 0)
            latest[edge.source] = min(latest.get(edge.source, bound), bound)
    for node in capable.view.nodes:  # lists follow what they hold
        if node.type in LISTS:
            levels[node] = max([-1, *(levels[edge.source] for edge in edges[node])])


def _dependencies(capable: Capability) -> dict[OpNode, list[_Edge]]:
    """What each operator has to wait for: data, memory that is overwritten, and order."""
    others = dependencies.memory_and_effect_dependencies(
        capable.view, lambda node: not capable.can_convert(node)
    )
    edges: dict[OpNode, list[_Edge]] = {}
    for node in capable.view.nodes:
        apart = capable.read_by_value(node)
        data = [
            _Edge(maker, vid in apart) for vid in node.reads for maker in capable.producers(vid)
        ]
        edges[node] = [*data, *map(_Edge, others[node])]
    _separate_devices(capable, edges)
    return edges


def _separate_devices(capable: Capability, edges: dict[OpNode, list[_Edge]]) -> None:
    """Operators of two devices do not share an interval; nor what one of them waits for."""

    def crosses(node: OpNode, edge: _Edge) -> bool:
        both = capable.can_convert(node) and capable.can_convert(edge.source)
        return both and node.device != edge.source.device

    awaited = {edge.source for node in edges for edge in edges[node] if crosses(node, edge)}
    for node in edges if awaited else ():
        for edge in edges[node]:
            edge.must_separate |= edge.source in awaited
