"""Scheduling: an order of the operators of a block with low peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paddle_ngraph.partitioning.analysis import dependencies
from paddle_ngraph.transpiler.memory import liveness
from paddle_ngraph.transpiler.memory.liveness import Lifetimes, MemoryStep

Edges = Mapping[MemoryStep, Sequence[MemoryStep]]


def schedule(lifetimes: Lifetimes) -> list[MemoryStep]:
    """The steps in the order found with the least peak of memory, at most that of program order."""
    edges = edges_of(lifetimes)
    late = _defer_allocations(lifetimes, edges)
    orders: tuple[list[MemoryStep], ...] = (
        _advance_releases(late, edges, lifetimes),
        _advance_releases(lifetimes.steps, edges, lifetimes),
        lifetimes.steps,
    )
    return min(orders, key=lambda order: lifetimes.peak(order))


def edges_of(lifetimes: Lifetimes) -> Edges:
    """For each step, the steps that must precede it: by data, memory or ordering effects."""
    view = lifetimes.view
    steps = {step.node: step for step in lifetimes.steps}
    others = dependencies.memory_and_effect_dependencies(view, lambda node: True)
    found: dict[MemoryStep, list[MemoryStep]] = {}
    for step in lifetimes.steps:
        producers = (view.producer.get(vid) for vid in step.node.reads)
        before = [producer for producer in producers if producer is not None] + list(
            others[step.node]
        )
        found[step] = [steps[node] for node in dict.fromkeys(before)]
    _move_sinks_last(lifetimes.steps, found)
    return found


def _move_sinks_last(
    steps: Sequence[MemoryStep], edges: dict[MemoryStep, list[MemoryStep]]
) -> None:
    """Adds edges that keep the terminator of a block after all other steps."""
    for step in steps:
        if step.node.type == "cf.yield":
            edges[step] = [other for other in steps if other is not step]


def _defer_allocations(lifetimes: Lifetimes, edges: Edges) -> list[MemoryStep]:
    """Program order, but steps that allocate more than they free run at their first reader."""
    steps = lifetimes.steps
    last: dict[str, MemoryStep] = {}
    for step in steps:
        last.update(dict.fromkeys((*step.allocates, *step.reads), step))
    position = {step: number for number, step in enumerate(steps)}
    found: dict[MemoryStep, None] = {}

    def grows(step: MemoryStep) -> int:
        ending = {b for b in (*step.allocates, *step.reads) if last[b] is step} - lifetimes.live_out
        return lifetimes.total(step.allocates) - lifetimes.total(ending)

    def emit(wanted: MemoryStep) -> None:
        pending = [wanted]
        while pending:
            step = pending[-1]
            missing = {before for before in edges[step] if before not in found}
            if missing:
                pending += sorted(missing, key=lambda each: -position[each])
                continue
            found[step] = None
            pending.pop()
            while pending and pending[-1] in found:
                pending.pop()

    for step in (step for step in steps if grows(step) <= 0):
        emit(step)
    for step in steps:
        if step not in found:
            emit(step)
    return list(found)


def _advance_releases(
    order: Sequence[MemoryStep], edges: Edges, lifetimes: Lifetimes
) -> list[MemoryStep]:
    """``order``, but a step that adds little or no memory runs as soon as its predecessors have."""
    remaining = _PendingSteps(order, edges, lifetimes)
    found: dict[MemoryStep, None] = {}
    small = [
        step for step in order if remaining.is_ready(step) and remaining.is_memory_neutral(step)
    ]
    for step in [*small, *order]:
        pending = [step]
        while pending:
            now = pending.pop()
            if now not in found:
                found[now] = None
                pending += filter(remaining.is_memory_neutral, remaining.after(now))
    return list(found)


class _PendingSteps:
    """The steps of a block that are not in the schedule yet, and the dependencies between them.

    Args:
        order: All steps.
        edges: The predecessors of each step.
        lifetimes: The buffers of the steps.
    """

    def __init__(self, order: Sequence[MemoryStep], edges: Edges, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._dependencies = {step: set(edges[step]) for step in order}
        self._followers: dict[MemoryStep, list[MemoryStep]] = {step: [] for step in order}
        self._users: dict[str, dict[MemoryStep, None]] = {buffer: {} for buffer in lifetimes.sizes}
        for step in order:
            for before in edges[step]:
                self._followers[before].append(step)
            for buffer in (*step.allocates, *step.reads):
                self._users[buffer][step] = None

    def after(self, step: MemoryStep) -> Iterator[MemoryStep]:
        """Removes a step that was scheduled, after which other steps may have become good choices.

        Returns:
            Ready steps that depend on the step, or now are the only pending user of one of its
            buffers, so that they free the buffer.
        """
        touched = dict.fromkeys(self._followers[step])
        for follower in touched:
            self._dependencies[follower].discard(step)
        for buffer in dict.fromkeys(
            (*step.allocates, *self._lifetimes.in_creation_order(step.reads))
        ):
            del self._users[buffer][step]
            if len(self._users[buffer]) == 1:
                touched.update(self._users[buffer])
        return (each for each in touched if not self._dependencies[each])

    def is_ready(self, step: MemoryStep) -> bool:
        """Whether all predecessors of a step have been scheduled."""
        return not self._dependencies[step]

    def is_memory_neutral(self, step: MemoryStep) -> bool:
        """Whether running a step next increases the live bytes by no more than MIN_SAVED_BYTES."""
        buffers = {*step.allocates, *step.reads} - self._lifetimes.live_out
        ending = (buffer for buffer in buffers if len(self._users[buffer]) == 1)
        freed = self._lifetimes.total(ending)
        return self._lifetimes.total(step.allocates) - freed <= liveness.MIN_SAVED_BYTES
