"""Assignment of operators to the stages of a pipeline in one process.

The cuts of the forward pass minimize the time of the longest stage, transfers across the cut
included. An operator of the backward pass belongs to the stage of its forward operator, so that
only values at the cut pass from stage to stage. Parameters are in memory that all stages share, and
belong to none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import BlockView, OpNode
from paddle_ngraph.plan.spreading import BOUNDARY_US, leading_operators, producers_of
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.transpiler.staging import best_ends, elements_between
from paddle_ngraph.transpiler.training_program import is_backward


def staged(
    view: BlockView, nodes: Sequence[OpNode], stages: int, measured: Sequence[float] = ()
) -> dict[OpNode, int]:
    """Divides a block into stages of a pipeline; returns the stage of each operator.

    Args:
        view: The block.
        nodes: The operators, in program order.
        stages: The number of stages.
        measured: The measured time of each stage in the first cut, by estimated operator times;
            stages are then cut again. Any unit.

    Raises:
        NgraphError: There are too few operators.
    """
    found = _Stages(view, nodes, stages)
    return found.recut(measured) if measured else found.stage


class _Stages:
    """Cuts a block into stages of similar duration; the state behind :func:`staged`."""

    def __init__(self, view: BlockView, nodes: Sequence[OpNode], stages: int) -> None:
        self._view = view
        self._nodes = nodes
        self._stages = stages
        self._forward = _forward(view, nodes)
        self._followed = leading_operators(view, nodes)
        self._us = dict.fromkeys(self._forward, 0.0)
        for node in nodes:
            forward = self._followed.get(node, node)
            if forward in self._us:
                self._us[forward] += cost_model.us_of(view, node)
        self.stage = self._cut(self._us)

    def recut(self, measured: Sequence[float]) -> dict[OpNode, int]:
        """Cuts the stages again, given the measured durations of the present stages."""
        estimated = [0.0] * self._stages
        for node, us in self._us.items():
            estimated[self.stage[node]] += us
        rates = [ms / us for ms, us in zip(measured, estimated)]
        # Converts measured times to microseconds, in which the cost of transfers between stages is
        # given.
        scale = sum(estimated) / sum(measured)
        return self._cut({n: us * rates[self.stage[n]] * scale for n, us in self._us.items()})

    def _cut(self, us: Mapping[OpNode, float]) -> dict[OpNode, int]:
        between = elements_between(self._view, self._forward)
        transfer_us = [BOUNDARY_US + each / SETTINGS.accessed_elements_per_us for each in between]
        count = len(self._forward)
        ends = best_ends(list(us.values()), transfer_us, self._stages, range(1, count))
        if ends is None:
            raise NgraphError(
                f"too few operators compute something of the data: {count} in the forward pass, "
                f"for {self._stages} stages"
            )
        slices = zip([0, *ends], [*ends, count])
        stage = {n: s for s, (a, b) in enumerate(slices) for n in self._forward[a:b]}
        for node in self._nodes:
            if node not in stage:
                # A sum of gradients is computed in the earliest stage of its terms, whose gradient
                # is computed last.
                producers = [
                    producer for producer in producers_of(self._view, node) if producer in stage
                ]
                latest = max(producers, key=lambda producer: producer.index, default=None)
                forward = self._followed.get(node, latest)
                stage[node] = 0 if forward is None else stage[forward]
        return stage


def _forward(view: BlockView, nodes: Sequence[OpNode]) -> list[OpNode]:
    """The operators of the forward pass: neither in the backward pass, nor reading its results."""
    backward: set[OpNode] = set()
    for node in nodes:
        if is_backward(node.op) or not backward.isdisjoint(producers_of(view, node)):
            backward.add(node)
    return [node for node in nodes if node not in backward]
