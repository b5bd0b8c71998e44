"""Recomputation (checkpointing): results are freed early and recomputed before later uses.

A result takes memory between its use in the forward pass and that in the backward pass. A greedy
search takes, at the step of peak memory, the result with the most bytes saved per time of its
operators, and repeats until the peak fits the budget or no candidate is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from paddle_ngraph.ops.normalization import uses_running_statistics
from paddle_ngraph.partitioning.analysis.block_view import OpNode
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.transpiler.memory import liveness
from paddle_ngraph.transpiler.memory.liveness import Lifetimes, MemoryStep

# Prefixes of the types of operators that are too expensive to recompute.
_MATMUL_PREFIXES = (
    "conv",
    "depthwise_conv",
    "matmul",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "mv",
    "dot",
)
_EXPENSIVE = frozenset({"rnn", "gru", "lstm", "warpctc", "sort", "argsort", "unique", "topk"})
# For operators that take longer than one pass over their data: the number of passes, roughly.
_MEMORY_PASSES = {
    "batch_norm_": 3,
    "layer_norm": 3,
    "group_norm": 3,
    "instance_norm": 3,
    "softmax": 3,
    "log_softmax": 3,
    "cross_entropy_with_softmax": 3,
    "exp": 4,
    "gelu": 6,
    "log": 4,
    "sigmoid": 4,
    "silu": 4,
    "tanh": 4,
}
_BYTES_PER_ELEMENT = 4
# Maximum number of operators that are recomputed for one result.
_MAX_STEPS_PER_RECOMPUTE = 12
# Names of batch norm's inputs that it overwrites: when recomputed, it gets substitutes, so that
# statistics are updated once.
STATISTICS = ("mean", "variance")


@dataclass
class _Recompute:
    """A candidate for recomputation.

    Attributes:
        buffer: The result.
        before: The first step that reads the recomputed result.
        again: The steps that recompute the result, in order.
        saved: The bytes saved at the peak.
        us: The estimated time of the steps, in microseconds.
    """

    buffer: str
    before: MemoryStep
    again: list[MemoryStep] = field(default_factory=list)
    saved: int = 0
    us: float = 0.0


def recompute(steps: list[MemoryStep], lifetimes: Lifetimes, budget: int) -> list[MemoryStep]:
    """Returns the steps of a block with inserted recompute steps, to lower the peak of memory.

    Args:
        steps: All steps of a block, in order.
        lifetimes: The buffers of the steps; buffers of recomputed results are added.
        budget: The peak memory to reach, in bytes.
    """
    return _RecomputeSearch(steps, lifetimes).run(budget)


def can_run_again(node: OpNode) -> bool:
    """Whether recomputing an operator is cheap, deterministic and without side effects."""
    if not node.type.startswith("pd_op.") or node.effects or node.outer_writes or node.is_source:
        return False
    if node.op.num_regions() > 0 or _is_expensive(node.type.removeprefix("pd_op.")):
        return False
    values = [*node.op.operands_source(), *node.op.results()]
    if not all(value.is_dense_tensor_type() for value in values if value.initialized()):
        return False
    if any(node.op.is_no_need_buffer(v) for v in node.op.operands_source() if v.initialized()):
        return False
    return not node.overwrites or is_batch_norm(node)


def is_batch_norm(node: OpNode) -> bool:
    """Whether an operator is a batch norm that updates its running statistics."""
    return node.type == "pd_op.batch_norm_" and not uses_running_statistics(node.op.attrs())


def _is_expensive(name: str) -> bool:
    return name in _EXPENSIVE or name.startswith(_MATMUL_PREFIXES)


class _RecomputeSearch:
    """Greedy search for the results to recompute; see :func:`recompute`."""

    def __init__(self, steps: list[MemoryStep], lifetimes: Lifetimes) -> None:
        self._steps = steps
        self._lifetimes = lifetimes
        self._sizes = lifetimes.sizes
        self._recomputed: dict[str, str] = {}  # buffer -> its recomputed copy
        self._numbers = count()
        self._writers: dict[str, list[OpNode]] = {}
        for node in lifetimes.view.nodes:
            for vid in [*(operand for operand, _ in node.overwrites), *node.outer_writes]:
                self._writers.setdefault(lifetimes.view.memory(vid), []).append(node)

    def run(self, budget: int) -> list[MemoryStep]:
        tried: set[str] = set()
        gained = False
        while True:
            usage = self._lifetimes.usage(self._steps)
            most = max(usage, default=0)
            if most <= budget:
                return self._steps
            self._analyze(usage.index(most))
            choices = [c for c in self._choices() if c.buffer not in tried]
            if not choices:
                if not gained:
                    return self._steps
                # All candidates are tried again, since gains so far may make some of the failed
                # ones useful.
                tried, gained = set(), False
                continue
            choice = max(choices, key=lambda each: each.saved / each.us)
            tried.add(choice.buffer)
            gained = self._apply(choice, usage) or gained

    def _analyze(self, now: int) -> None:
        """Finds producer, last use, and first use from the peak ``now`` on, of each buffer."""
        self._peak = now
        self._position = {step: number for number, step in enumerate(self._steps)}
        self._position_of_node = {
            s.node: n for n, s in enumerate(self._steps) if not s.is_recompute
        }
        self._producer = {buffer: step for step in self._steps for buffer in step.allocates}
        self._last: dict[str, int] = {}
        self._next: dict[str, int] = {}
        for number, step in enumerate(self._steps):
            for buffer in (*step.allocates, *self._lifetimes.in_creation_order(step.reads)):
                self._last[buffer] = number
                if number >= now:
                    self._next.setdefault(buffer, number)

    def _choices(self) -> Iterator[_Recompute]:
        for buffer, position in self._next.items():
            producer = self._producer[buffer]
            if (
                position == self._peak
                or self._position[producer] >= self._peak
                or producer.is_recompute
            ):
                continue
            if buffer in self._lifetimes.live_out or self._sizes[buffer] < liveness.MIN_SAVED_BYTES:
                continue
            if buffer in self._recomputed or not self._can_be_substituted(buffer, position):
                continue
            choice = _Recompute(buffer, self._steps[position], saved=self._sizes[buffer])
            if self._add(choice, buffer, set()) and choice.saved > 0:
                yield choice

    def _can_be_substituted(self, buffer: str, position: int) -> bool:
        """Whether all readers of a buffer from step ``position`` on can read a recomputed copy."""
        if self._lifetimes.values[buffer] > 1:
            return False
        later = (step for step in self._steps[position:] if buffer in step.reads)
        return not any(buffer in step.indirect for step in later)

    def _add(self, choice: _Recompute, buffer: str, seen: set[str]) -> bool:
        """Adds to ``choice``, a candidate recomputation, the steps that recompute ``buffer``.

        Returns whether the buffer can be recomputed.
        """
        producer = self._producer[buffer]
        at = self._position[choice.before]
        if (
            producer.is_recompute
            or self._lifetimes.values[buffer] > 1
            or not can_run_again(producer.node)
        ):
            return False
        if len(choice.again) >= _MAX_STEPS_PER_RECOMPUTE or self._is_overwritten(producer, at):
            return False
        seen.update(producer.allocates)
        kept: dict[str, int] = {}
        for need in self._lifetimes.in_creation_order(producer.reads - seen):
            copy = self._available_copy(need, at)
            if self._last[copy] >= at or copy in self._lifetimes.live_out:
                continue
            if copy != need or not self._try(choice, need, seen):
                kept[copy] = self._sizes[copy] if self._is_live_at_peak(copy) else 0
        choice.again.append(producer)
        choice.saved -= sum(kept.values())
        choice.us += us_of(producer, self._lifetimes)
        return True

    def _available_copy(self, buffer: str, at: int) -> str:
        """The name of a buffer's copy that is recomputed before step ``at``; else ``buffer``."""
        again = self._recomputed.get(buffer)
        return again if again and self._position[self._producer[again]] < at else buffer

    def _try(self, choice: _Recompute, buffer: str, seen: set[str]) -> bool:
        """Adds the recomputation of ``buffer`` to the choice, or leaves the choice unchanged."""
        trial = replace(choice, again=list(choice.again))
        tried = set(seen)
        if not self._add(trial, buffer, tried):
            return False
        choice.again, choice.saved, choice.us = trial.again, trial.saved, trial.us
        seen |= tried
        return True

    def _is_live_at_peak(self, buffer: str) -> bool:
        """Whether a buffer that is read after the peak has been computed before it."""
        return self._position[self._producer[buffer]] <= self._peak

    def _is_overwritten(self, producer: MemoryStep, at: int) -> bool:
        """Whether an operand of a step is overwritten between the step and index ``at``."""
        node, begin = producer.node, self._position[producer]
        for name, value in zip(node.op.get_input_names(), node.op.operands_source()):
            if not value.initialized() or (is_batch_norm(node) and name in STATISTICS):
                continue
            memory = self._lifetimes.view.memory(str(value.id))
            if any(
                begin < self._position_of_node[writer] < at
                for writer in self._writers.get(memory, ())
            ):
                return True
        return False

    def _apply(self, choice: _Recompute, before: list[int]) -> bool:
        """Inserts a recomputation if that reduces the peak; returns whether it was inserted."""
        given = self._steps, dict(self._recomputed), dict(self._sizes)
        at = self._position[choice.before]
        added = list(self._recompute_steps(choice))
        names = {
            choice.buffer: added[-1].allocates[choice.again[-1].allocates.index(choice.buffer)]
        }
        later = [step.with_reads(names) for step in self._steps[at:]]
        self._steps = [*self._steps[:at], *added, *later]
        if self._reduces_peak(before, self._lifetimes.usage(self._steps)):
            return True
        self._steps, self._recomputed, sizes = given
        self._sizes.clear()
        self._sizes.update(sizes)
        return False

    def _reduces_peak(self, before: list[int], after: list[int]) -> bool:
        """Whether memory at the peak decreases, and no step in ``after`` exceeds the old peak."""
        return max(after) <= max(before) and after[self._peak] < before[self._peak]

    def _recompute_steps(self, choice: _Recompute) -> Iterator[MemoryStep]:
        at = self._position[choice.before]
        for producer in choice.again:
            number = next(self._numbers)
            names = {need: self._available_copy(need, at) for need in producer.reads}
            allocates = tuple(f"{buffer}, again {number}" for buffer in producer.allocates)
            self._sizes.update(
                (new, self._sizes[old]) for new, old in zip(allocates, producer.allocates)
            )
            again = replace(producer.with_reads(names), allocates=allocates, is_recompute=True)
            for old, new in zip(producer.allocates, allocates):
                self._recomputed[old], self._producer[new] = new, again
            self._position[again] = at - 1
            yield again


def us_of(step: MemoryStep, lifetimes: Lifetimes) -> float:
    """The estimated time of a step's operator, in microseconds."""
    passes = _MEMORY_PASSES.get(step.node.type.removeprefix("pd_op."), 1)
    elements = lifetimes.total([*step.allocates, *step.reads]) / _BYTES_PER_ELEMENT
    return SETTINGS.dispatch_us_per_operator + passes * elements / SETTINGS.accessed_elements_per_us
