"""The convertible operators of a block in as few intervals as the dependencies allow.

Every operator gets a level: interval ``k`` runs before the native operators of level ``k``, and
these before interval ``k + 1``. An operator that cannot be converted and does not depend on the
middle of an interval therefore never splits it. An operator is moved to the latest interval it may
be in, which keeps its results inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from paddle_ngraph.program import dependencies
from paddle_ngraph.program.capability import Capability
from paddle_ngraph.program.view import LISTS, OpNode


@dataclass
class Interval:
    """Operators that one engine operator stands for, in program order."""

    level: int
    nodes: list[OpNode]

    @property
    def range(self) -> list[int]:
        """First and last position in the operator list."""
        return [self.nodes[0].index, self.nodes[-1].index]


@dataclass
class _Edge:
    source: OpNode
    apart: bool = False  # the two may not share an interval


class Partition(NamedTuple):
    """The intervals of a block, and the level of every operator."""

    intervals: list[Interval]
    levels: Mapping[OpNode, int]


def partition(capable: Capability) -> Partition:
    """Groups the convertible operators into intervals."""
    levels = _levels(capable)
    members: dict[int, list[OpNode]] = {}
    for node in capable.view.nodes:
        if capable.can_convert(node) and node not in capable.constants:
            members.setdefault(levels[node], []).append(node)
    return Partition([Interval(level, members[level]) for level in sorted(members)], levels)


def _levels(capable: Capability) -> dict[OpNode, int]:
    edges = _dependencies(capable)
    levels: dict[OpNode, int] = {}
    for node in capable.view.nodes:
        converted = capable.can_convert(node)
        level = 0 if converted else -1
        for edge in edges[node]:
            step = 0
            if converted:
                step = 1 if edge.apart or not capable.can_convert(edge.source) else 0
            level = max(level, levels[edge.source] + step)
        levels[node] = level
    _move_late(capable, edges, levels)
    return levels


def _move_late(
    capable: Capability, edges: dict[OpNode, list[_Edge]], levels: dict[OpNode, int]
) -> None:
    latest: dict[OpNode, int] = {}
    for node in reversed(capable.view.nodes):
        if capable.can_convert(node):
            levels[node] = max(levels[node], latest.get(node, levels[node]))
        for edge in edges[node]:
            if node.type in LISTS or not capable.can_convert(edge.source):
                continue
            bound = levels[node] - (1 if edge.apart and capable.can_convert(node) else 0)
            latest[edge.source] = min(latest.get(edge.source, bound), bound)
    for node in capable.view.nodes:  # lists follow what they hold
        if node.type in LISTS:
            levels[node] = max([-1, *(levels[edge.source] for edge in edges[node])])


def _dependencies(capable: Capability) -> dict[OpNode, list[_Edge]]:
    """What each operator has to wait for: data, memory that is overwritten, and order."""
    others = dependencies.by_memory_and_order(
        capable.view, lambda node: not capable.can_convert(node)
    )
    edges: dict[OpNode, list[_Edge]] = {}
    for node in capable.view.nodes:
        apart = capable.read_by_value(node)
        data = [_Edge(maker, vid in apart) for vid in node.reads for maker in capable.makers(vid)]
        edges[node] = [*data, *map(_Edge, others[node])]
    return edges
