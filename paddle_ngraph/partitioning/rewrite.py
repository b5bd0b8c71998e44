"""Replaces subgraphs of a block by engine operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import make_persistable
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.block_view import CONSTANTS, LISTS, OpNode
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.subgraph import Subgraph


def rewrite(
    capable: Capability, levels: Mapping[OpNode, int], subgraphs: Sequence[Subgraph]
) -> None:
    """Replaces each subgraph of a block with one ``ngraph_engine`` operator, and drops dead code.

    Args:
        capable: The block.
        levels: The levels of all operators: the order of subgraphs and fallback operators.
        subgraphs: The subgraphs.
    """
    _Rewriter(capable, levels, subgraphs).run()


class _Rewriter:
    """The replacement in one block; see :func:`rewrite`."""

    def __init__(
        self, capable: Capability, levels: Mapping[OpNode, int], subgraphs: Sequence[Subgraph]
    ) -> None:
        self._capable = capable
        self._view = capable.view
        self._subgraphs: dict[int, list[Subgraph]] = {}
        for subgraph in subgraphs:
            self._subgraphs.setdefault(subgraph.interval.level, []).append(subgraph)
        self._levels = levels
        # For each variable, the value that holds its contents after the operators rewritten so far.
        self._replacements = dict(capable.view.values)

    def run(self) -> None:
        subgraphs = self._subgraphs
        inside = {node for level in subgraphs.values() for b in level for node in b.interval.nodes}
        remaining = [node for node in self._view.nodes if node not in inside]
        first = [n for n in remaining if n.is_source or n in self._capable.constants]
        last = [n for n in remaining if n.type == "cf.yield"]
        self._to_end(first)
        rest = [n for n in remaining if n not in set(first) and n not in set(last)]
        by_level: dict[int, list[OpNode]] = {}
        for node in rest:
            by_level.setdefault(self._levels[node], []).append(node)
        for level in sorted({*by_level, *subgraphs}):
            for subgraph in subgraphs.get(level, ()):
                if subgraph.outputs or subgraph.states:
                    self._insert(subgraph)
            self._to_end(by_level.get(level, []))
        self._to_end(last)
        self._drop_dead(inside)

    def _to_end(self, nodes: Iterable[OpNode]) -> None:
        for node in nodes:
            self._view.block.move_op_to_block_end(node.op)

    def _insert(self, subgraph: Subgraph) -> None:
        fallback.record_graph(subgraph.text)
        values = _core.insert_ngraph_engine(
            self._view.block,
            None,
            [self._replacements[v] for v in subgraph.inputs],
            [self._replacements[v] for v in subgraph.states],
            [self._view.values[v] for v in subgraph.outputs],
            subgraph.text,
            subgraph.interval.range,
        )
        for old, new in zip((self._view.values[v] for v in subgraph.outputs), values):
            # The engine's result must be persistable, too: Paddle looks such a value up in the
            # outermost scope.
            if old.persistable:
                make_persistable(new)
        offset = {"output": 0, "state": len(subgraph.outputs)}
        for vid, (target, position) in subgraph.replaced_by.items():
            value = values[offset[target] + position]
            self._view.values[vid].replace_all_uses_with(value)
            self._replacements[vid] = value

    def _drop_dead(self, inside: set[OpNode]) -> None:
        for node in reversed(self._view.nodes):
            if node not in inside and node.type not in LISTS | CONSTANTS:
                continue
            used = any(v.initialized() and not v.use_empty() for v in node.op.results())
            if not used:
                self._view.block.remove_op(node.op)
            elif node in inside:
                raise NgraphError(
                    f"{node.type} (operator {node.index}) was converted, but is still in use; "
                    "please report this program"
                )
