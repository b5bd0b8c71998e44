"""Legality rules of subgraphs: operators rejected because of other operators in the subgraph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist, disk_cache
from paddle_ngraph.conversion.build import conversion_error
from paddle_ngraph.conversion.kernel_calls import SAMPLEWISE
from paddle_ngraph.conversion.registry import Role
from paddle_ngraph.ir.graph import Op
from paddle_ngraph.partitioning import background_compile, fallback
from paddle_ngraph.partitioning.analysis.block_view import LISTS, OpNode
from paddle_ngraph.partitioning.analysis.capability import Capability
from paddle_ngraph.partitioning.partition import Interval
from paddle_ngraph.partitioning.subgraph import Subgraph
from paddle_ngraph.settings import SETTINGS

# Batches of networks without these are not computed in chunks.
_CONVOLUTIONS = frozenset(
    f"pd_op.{name}" for name in ("conv2d", "depthwise_conv2d", "conv3d", "conv2d_transpose")
)
_MAX_OUTPUTS: int = _core.max_outputs


def illegal_operators(
    capable: Capability, subgraph: Subgraph, tries: bool
) -> Iterator[tuple[OpNode, str]]:
    """Yields operators that cannot stay in their subgraph, and why.

    Args:
        tries: Whether to try the conversion now even if the function will be compiled in the
            background.
    """
    interval = subgraph.interval
    if all(map(capable.is_kernel_call, interval.nodes)):
        yield from ((n, "no converter, and only such operators around it") for n in interval.nodes)
    elif unsized := list(_unsized_from_outside(capable, subgraph)):
        yield from ((n, "no converter, and a size of its input depends on data") for n in unsized)
    elif calls := _calls_against_chunks(capable, subgraph):
        yield from ((n, "no converter, and the batch is computed in chunks") for n in calls)
    elif empty := list(_computing_empty_outputs(capable, subgraph)):
        yield from ((node, "it computes an empty tensor for another interval") for node in empty)
    elif crossing := list(_arrays_crossing_boundary(capable, subgraph)):
        yield from ((node, "its TensorArray is used outside of its interval") for node in crossing)
    elif len(subgraph.outputs) > _MAX_OUTPUTS:
        producers = {
            spec.id: node for node in interval.nodes for spec in capable.ops[node].outputs_used()
        }
        for spec in subgraph.graph.outputs[_MAX_OUTPUTS:]:
            yield producers[spec.id], f"its interval has more than {_MAX_OUTPUTS} outputs"
    elif stochastic := list(_unused_random_operators(capable, subgraph)):
        for node in stochastic:
            yield node, "its random numbers have no reader in its interval"
    elif (reason := denylist.subgraph_denial_reason(subgraph.graph)) is not None:
        yield from ((node, reason) for node in interval.nodes)
    elif (found := fallback.reason_against(subgraph.graph)) is not None:
        yield next(n for n in interval.nodes if n.index == found[0].index), found[1]
    elif disk_cache.is_stored(subgraph.text):
        return  # no trial build: a function of the subgraph is stored on disk
    elif not tries and background_compile.wants(subgraph.text):
        return  # no trial build: the background thread builds it, and reports failures
    elif error := conversion_error(subgraph.graph, subgraph.text):
        failing = next(n for n in interval.nodes if n.index == error.op.index)
        yield failing, denylist.deny_operator(error)


def _unsized_from_outside(capable: Capability, subgraph: Subgraph) -> Iterator[OpNode]:
    """Yields kernel calls that read a size from outside that depends on data.

    Each size would need a function.
    """
    unsized = {capable.tensor_ids[vid] for vid in capable.unsized.intersection(subgraph.inputs)}
    for node in subgraph.interval.nodes if unsized else ():
        read = {spec.id for spec in capable.ops[node].input_specs()}
        if capable.is_kernel_call(node) and not unsized.isdisjoint(read):
            yield node


def _calls_against_chunks(capable: Capability, subgraph: Subgraph) -> list[OpNode]:
    """Kernel calls that keep a batch of images from being computed in chunks (batch_split.py).

    Without chunks convolutions take longer, by more than a kernel call gains.
    """
    ops = subgraph.graph.ops
    if any(op.type.endswith("_grad") for op in ops):
        return []
    nodes = filter(capable.is_kernel_call, subgraph.interval.nodes)
    calls = [node for node in nodes if node.type not in SAMPLEWISE]
    convolutions = [op for op in ops if op.type in _CONVOLUTIONS]
    return calls if calls and _may_have_chunks(convolutions) else []


def _may_have_chunks(convolutions: Sequence[Op]) -> bool:
    """Whether the batch of these convolutions is dynamic, or large enough for two chunks."""
    work = 0
    for op in convolutions:
        batch = next(op.input_specs()).shape[0]
        for made in op.outputs_used() if batch != 1 else ():
            if -1 in made.shape:
                return True
            work += math.prod(made.shape) * math.prod(op.input("filter").shape[1:])
    return work >= 2 * SETTINGS.min_multiplications_per_chunk


def _computing_empty_outputs(capable: Capability, subgraph: Subgraph) -> Iterator[OpNode]:
    """Yields operators of which a loop of another subgraph gets an initial value that is empty."""
    empty = capable.empty_starts.intersection(subgraph.outputs)
    for node in subgraph.interval.nodes if empty else ():
        if not empty.isdisjoint(node.writes):
            yield node


def _arrays_crossing_boundary(capable: Capability, subgraph: Subgraph) -> Iterator[OpNode]:
    """Yields operators of the subgraph on TensorArrays that are used outside of it, too."""
    view = capable.view
    given = map(view.root, (*subgraph.inputs, *subgraph.states, *subgraph.outputs))
    crossing = set(filter(view.is_array, given))
    for node in subgraph.interval.nodes if crossing else ():
        if not crossing.isdisjoint(map(view.root, (*node.reads, *node.writes))):
            yield node


def _unused_random_operators(capable: Capability, subgraph: Subgraph) -> Iterator[OpNode]:
    """Yields stochastic operators whose samples no operator of the subgraph computes with."""
    stochastic = capable.random_nodes(subgraph.interval.nodes)
    if stochastic and not subgraph.outputs and not subgraph.states:
        yield from stochastic
    inside = set(subgraph.interval.nodes)
    for node in stochastic:
        entry = capable.converters[node]
        computes = any(entry.role(name) is not Role.CONSTANT for name, _ in capable.slots[node])
        readers = {reader for vid in node.writes for reader in capable.view.readers.get(vid, ())}
        if not computes and not any(reader in inside or reader.type in LISTS for reader in readers):
            yield node


def build_time_cuts(capable: Capability, intervals: list[Interval]) -> Iterator[tuple[OpNode, str]]:
    """Yields (operator, variable) where only the build of another subgraph knows the contents."""
    level = {node: interval.level for interval in intervals for node in interval.nodes}
    for node in level:
        entry = capable.converters[node]
        for name, vid in capable.slots[node]:
            producer = capable.view.producer.get(vid)
            if producer not in level or level[producer] == level[node]:
                continue
            if entry.role(name).has_contents_read and vid in capable.static:
                yield node, vid
