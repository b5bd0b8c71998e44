"""Replaces subgraphs of a block by engine operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.paddle_private.names import make_persistable
from paddle_ngraph.paddle_private.protocols import Block, Operation, Value
from paddle_ngraph.partitioning import fallback
from paddle_ngraph.partitioning.analysis.block_view import CONSTANTS, LISTS, OpNode
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.subgraph import Subgraph


class _Insertion(NamedTuple):
    """An engine operator, with the ids of its operands and outputs, and what replaces which."""

    text: str
    range: list[int]
    inputs: Sequence[str]
    states: Sequence[str]
    outputs: Sequence[str]
    # The id of a variable, and the index of the new operator's result that replaces it.
    replaced: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Rewriting:
    """The replacement of each subgraph of a block with one ``ngraph_engine`` operator.

    It refers to operators by their indices in the block before.
    """

    steps: Sequence[Sequence[int] | _Insertion]
    inside: frozenset[int]
    # Indices of the operators that are removed if nothing uses them, those of subgraphs among them.
    removable: Sequence[int]

    def apply(self, block: Block, values: Mapping[str, Value]) -> None:
        """Rewrites a block, and drops dead code.

        Args:
            block: The block for which the rewriting was made.
            values: The variables by id.
        """
        ops = block.ops
        # For each variable, the value that holds its contents after the steps so far.
        current = dict(values)
        for step in self.steps:
            if isinstance(step, _Insertion):
                _insert(block, step, values, current)
            else:
                for index in step:
                    block.move_op_to_block_end(ops[index])
        for index in self.removable:
            self._drop_if_dead(block, ops[index], index)

    def _drop_if_dead(self, block: Block, op: Operation, index: int) -> None:
        if not any(v.initialized() and not v.use_empty() for v in op.results()):
            block.remove_op(op)
        elif index in self.inside:
            raise NgraphError(
                f"{op.name()} (operator {index}) was converted, but is still in use; "
                "please report this program"
            )


def _insert(
    block: Block, step: _Insertion, values: Mapping[str, Value], current: dict[str, Value]
) -> None:
    fallback.record_graph(step.text)
    new = _core.insert_ngraph_engine(
        block,
        None,
        [current[v] for v in step.inputs],
        [current[v] for v in step.states],
        [values[v] for v in step.outputs],
        step.text,
        step.range,
    )
    for v, value in zip(step.outputs, new):
        # The engine's result must be persistable, too: Paddle looks such a value up in the
        # outermost scope.
        if values[v].persistable:
            make_persistable(value)
    for v, index in step.replaced:
        values[v].replace_all_uses_with(new[index])
        current[v] = new[index]


def rewriting_of(
    capable: Capability, levels: Mapping[OpNode, int], subgraphs: Sequence[Subgraph]
) -> Rewriting:
    """Returns the replacement of the subgraphs of a block.

    Args:
        capable: The block.
        levels: The levels of all operators: the order of subgraphs and fallback operators.
        subgraphs: The subgraphs.
    """
    view = capable.view
    inside = {node for each in subgraphs for node in each.interval.nodes}
    removable = [n for n in reversed(view.nodes) if n in inside or n.type in LISTS | CONSTANTS]
    return Rewriting(
        list(_steps(capable, levels, subgraphs, inside)),
        frozenset(node.index for node in inside),
        [node.index for node in removable],
    )


def _steps(
    capable: Capability,
    levels: Mapping[OpNode, int],
    subgraphs: Sequence[Subgraph],
    inside: set[OpNode],
) -> Iterator[list[int] | _Insertion]:
    """The order of the block: operators that move to its end, and new operators there."""
    remaining = [node for node in capable.view.nodes if node not in inside]
    first = [n for n in remaining if n.is_source or n in capable.constants]
    last = [n for n in remaining if n.type == "cf.yield"]
    placed = {*first, *last}
    by_level: dict[int, tuple[list[Subgraph], list[int]]] = {}
    for subgraph in subgraphs:
        by_level.setdefault(subgraph.interval.level, ([], []))[0].append(subgraph)
    for node in remaining:
        if node not in placed:
            by_level.setdefault(levels[node], ([], []))[1].append(node.index)
    yield [node.index for node in first]
    for _, (of_engine, native) in sorted(by_level.items()):
        for subgraph in of_engine:
            if subgraph.outputs or subgraph.states:
                yield _insertion(subgraph)
        yield native
    yield [node.index for node in last]


def _insertion(subgraph: Subgraph) -> _Insertion:
    offset = {"output": 0, "state": len(subgraph.outputs)}
    return _Insertion(
        subgraph.text,
        subgraph.interval.range,
        subgraph.inputs,
        subgraph.states,
        subgraph.outputs,
        [(v, offset[kind] + at) for v, (kind, at) in subgraph.replaced_by.items()],
    )
