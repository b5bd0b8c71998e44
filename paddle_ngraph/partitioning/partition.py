"""Partitioning of the convertible operators of a block into the fewest legal subgraphs.

Every operator gets a level: subgraph ``k`` runs before the fallback operators of level ``k``, and
these before subgraph ``k + 1``. An operator that cannot be converted and does not depend on the
middle of a subgraph therefore never splits it. A convertible operator moves to the latest level
that its dependencies allow, so that its results stay inside the subgraph.

With operators placed on devices, a subgraph has operators of one device. It begins where data
comes from another device, and ends where another device needs its data: subgraphs of two devices
run concurrently wherever their operators could. It also ends at a collective that is placed on
the link, so that later operators of the program can run concurrently with the collective.
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
    """The operators that one engine operator replaces, in program order; all on one device."""

    level: int
    nodes: list[OpNode]

    @property
    def device(self) -> str:
        """The device chosen for the operators of the subgraph; empty if none was chosen."""
        return self.nodes[0].device

    @property
    def range(self) -> list[int]:
        """The indices in the block of the subgraph's first and last operator."""
        return [self.nodes[0].index, self.nodes[-1].index]


@dataclass
class _Edge:
    source: OpNode
    # Whether source and target of the edge must be in different subgraphs.
    must_separate: bool = False


class Partition(NamedTuple):
    """The subgraphs of a block, and for each operator the level that its subgraph has."""

    intervals: list[Interval]
    levels: Mapping[OpNode, int]


def partition(capable: Capability) -> Partition:
    """Groups the operators of a block that can be converted into subgraphs, by level and device.

    A subgraph need not be connected.
    """
    levels = _levels(capable)
    members: dict[tuple[int, str], list[OpNode]] = {}
    for node in capable.view.nodes:
        if capable.can_convert(node) and node not in capable.constants:
            members.setdefault((levels[node], node.device), []).append(node)
    return Partition([Interval(key[0], members[key]) for key in sorted(members)], levels)


def _levels(capable: Capability) -> dict[OpNode, int]:
    edges = _dependencies(capable)
    levels: dict[OpNode, int] = {}
    # The lowest level that operators may have after a collective, during which others can run.
    first = 0
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
        # Operators move to later levels only if none is placed on a device: a delay on one device
        # would delay the others.
        _delay_operators(capable, edges, levels)
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
    # An operator on a list gets the highest level among the members of the list.
    for node in capable.view.nodes:
        if node.type in LISTS:
            levels[node] = max([-1, *(levels[edge.source] for edge in edges[node])])


def _dependencies(capable: Capability) -> dict[OpNode, list[_Edge]]:
    """The predecessors of each operator, by data, by overwritten memory and by side effects."""
    others = dependencies.memory_and_effect_dependencies(
        capable.view, lambda node: not capable.can_convert(node)
    )
    edges: dict[OpNode, list[_Edge]] = {}
    for node in capable.view.nodes:
        by_value = capable.read_by_value(node)
        data = [
            _Edge(producer, vid in by_value or capable.is_unsized_for(node, producer, vid))
            for read in node.reads
            for vid in capable.view.members(read)
            for producer in capable.producers(vid)
        ]
        edges[node] = [*data, *map(_Edge, others[node])]
    _separate_devices(capable, edges)
    return edges


def _separate_devices(capable: Capability, edges: dict[OpNode, list[_Edge]]) -> None:
    """Marks the edges from each operator whose results another device reads.

    All readers of such an operator go to later subgraphs, so the subgraph ends there, and the other
    device does not wait for more operators.
    """

    def crosses(node: OpNode, edge: _Edge) -> bool:
        both = capable.can_convert(node) and capable.can_convert(edge.source)
        return both and node.device != edge.source.device

    awaited = {edge.source for node in edges for edge in edges[node] if crosses(node, edge)}
    for node in edges if awaited else ():
        for edge in edges[node]:
            edge.must_separate |= edge.source in awaited
