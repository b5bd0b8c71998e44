"""The data-dependency engine: the intervals of a program, each run when its inputs are there.

A program of nothing but engine operators, and collectives between them, runs without Paddle's
interpreter. Which operator waits for which is known beforehand: for data, for memory that is
overwritten, and, where random numbers are drawn, for their order. A run starts operators in program
order as soon as all that they wait for has ended and the cores of their device are free. So no core
computes two intervals at once, whatever the number of threads, and results do not depend on which
operator is faster.

A collective that is placed on the link takes no core: it runs beside whatever does not wait for it.
Collectives take turns in program order, the same on every rank.

An operator takes all cores of its device at once, or waits without holding any: nothing can wait in
a circle. If one fails, no other is started; what runs already ends, and the error is raised in the
thread that asked for the run.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.ir.graph import CPU, Graph, is_accelerator
from paddle_ngraph.paddle_private.names import (
    PaddleJob,
    PaddlePlan,
    StandaloneExecutor,
    clear_tensor,
    new_scope,
    remove_scope,
)
from paddle_ngraph.paddle_private.protocols import Program, Scope, Tensor
from paddle_ngraph.partitioning.analysis import dependencies
from paddle_ngraph.partitioning.analysis.block_view import (
    DRAW,
    FETCH,
    LISTS,
    SOURCES,
    BlockView,
    OpNode,
    dtype_name,
    is_fed,
    scope_name,
)
from paddle_ngraph.partitioning.analysis.placement import LINK_DEVICE, cores_of, share_count
from paddle_ngraph.plan.devices import usable_cores
from paddle_ngraph.plan.rows import RowPart, is_row_concat, is_row_split, row_parts
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.dtypes import NUMPY_DTYPES
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache

# Where a collective runs: on none of the cores.
_LINK_GROUP = frozenset({-1})
# The number of the first GPU or NPU; those of others are below.
_FIRST_ACCELERATOR = -2
_PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
_IN_THIS_THREAD = _core.FlagOverride("enable_pir_in_executor_trace_run")
# How many runs in one number of threads are compared with as many in another, and how many come
# before; runs that take longer than so many milliseconds are not.
_TRIAL_RUNS, _WARMUP_RUNS, _MAX_TUNED_MS = 7, 2, 10.0
_RUNS_BEFORE_RETUNING = 1000
# For feeds of so many shapes it is known which is faster.
_MAX_TUNED_SHAPES = 16
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """An engine operator of a program, a collective, or what puts rows together.

    Attributes:
        node: The operator.
        groups: The cores of its device; or several groups of cores, of which it takes one. What
            takes none has a number below 0 instead, of its device or of the link.
        after: The numbers of the steps that it waits for.
        reads: The variables that it is given: inputs, then states, by the ids of their memory.
        states: Those of them that it overwrites.
        writes: The variables that it makes; none for a collective, which overwrites what it reads.
    """

    node: OpNode
    groups: Sequence[frozenset[int]]
    after: frozenset[int]
    reads: Sequence[str]
    states: Sequence[str]
    writes: Sequence[str]


@dataclass(frozen=True)
class Schedule:
    """A program as steps.

    Attributes:
        steps: Its engine operators, collectives, and what puts rows together, in program order.
        sources: The names of the variables of the scope that they read, by id.
        rows: What they read of feeds where it is: equal parts along axis 0, by id.
        fed: Those of them that a run consumes.
        declared: The dtype and the shape of each of those.
        takes_arrays: Whether arrays can stand for all that is fed, and for all that is fetched.
        fetches: What is fetched, by column.
    """

    steps: Sequence[Step]
    sources: Mapping[str, str]
    rows: Mapping[str, RowPart]
    fed: Collection[str]
    declared: Mapping[str, tuple[str, list[int]]]
    takes_arrays: bool
    fetches: Sequence[str]


def schedule_of(program: Program) -> Schedule | None:
    """A program as steps; ``None`` if it computes or names anything besides, or is on no device."""
    view = BlockView(program.global_block())
    graphs = {node: Graph.from_string(node.graph) for node in view.nodes if node.is_engine}
    collectives = [node for node in view.nodes if node.device == LINK_DEVICE]
    joining = [node for node in view.nodes if is_row_concat(view, node)]
    steps = _steps(view, graphs, [*graphs, *collectives, *joining])
    if not steps or (not collectives and not any(graph.device for graph in graphs.values())):
        return None
    known = {step.node for step in steps}
    others = [node for node in view.nodes if node not in known and not is_row_split(view, node)]
    if any(node.type not in SOURCES | LISTS | {FETCH} for node in others):
        return None
    read = {vid for step in steps for vid in step.reads}
    parts = {vid: part for vid, part in row_parts(view).items() if vid in read}
    read |= {part.whole for part in parts.values()}
    sources = {n.writes[0]: n for n in others if n.is_source and n.writes[0] in read}
    if any(node.type == "builtin.constant" for node in sources.values()):
        return None
    fetches = {n.op.attrs()["col"]: view.root(n.reads[0]) for n in others if n.type == FETCH}
    made = {vid for step in steps for vid in step.writes}
    communicated = {view.root(vid) for node in collectives for vid in node.reads}
    if sorted(fetches) != list(range(len(fetches))) or not communicated <= made:
        return None
    if not (made - communicated).issuperset(fetches.values()):
        return None
    if not read <= made | sources.keys() | parts.keys():
        return None
    fed = {vid: node.op.result(0) for vid, node in sources.items() if is_fed(node.op)}
    overwritten = {vid for step in steps for vid in step.states}
    wholes = {part.whole for part in parts.values()}
    if not wholes <= fed.keys() or not overwritten.isdisjoint(wholes | parts.keys()):
        return None  # what is overwritten has memory of its own
    crossing = [*fed.values(), *(view.values[vid] for vid in fetches.values())]
    fits = all(dtype_name(value.dtype) in NUMPY_DTYPES for value in crossing)
    return Schedule(
        steps=steps,
        sources={vid: scope_name(node.op) for vid, node in sources.items()},
        rows=parts,
        fed=set(fed),
        declared={vid: (dtype_name(v.dtype), list(v.shape)) for vid, v in fed.items()},
        takes_arrays=fits and overwritten.isdisjoint(fed),
        fetches=[fetches[column] for column in range(len(fetches))],
    )


def _steps(
    view: BlockView, graphs: Mapping[OpNode, Graph], nodes: Collection[OpNode]
) -> list[Step]:
    """These operators as steps; none if fewer than two of them are engine operators."""

    def deeds(node: OpNode) -> frozenset[str]:
        return node.effects if not node.is_engine or node.draws else node.effects - {DRAW}

    if len(graphs) < 2:
        return []
    others = dependencies.memory_and_effect_dependencies(view, lambda node: False, deeds)
    nodes = sorted(nodes, key=attrgetter("index"))
    numbers = {node: number for number, node in enumerate(nodes)}
    accelerators = sorted({g.device for g in graphs.values() if is_accelerator(g.device)})
    steps = []
    for node in nodes:
        graph = graphs.get(node)
        is_native = graph is None and node.device != LINK_DEVICE
        given = node.reads[:1] if is_native else node.reads  # what it puts together, not the axis
        members = [m for vid in given for m in view.members(vid)]
        makers = [view.producer.get(view.root(member)) for member in members]
        after = {numbers[m] for m in [*makers, *others[node]] if m in numbers and m is not node}
        reads = [view.root(member) for member in members]
        step = Step(node, _groups(CPU, accelerators), frozenset(after), reads, [], node.writes)
        if graph is not None:
            states, made = reads[len(graph.inputs) :], node.writes[: len(graph.outputs)]
            step = replace(
                step, groups=_groups(graph.device, accelerators), states=states, writes=made
            )
        elif node.device == LINK_DEVICE:
            step = replace(step, groups=[_LINK_GROUP], states=reads, writes=[])
        steps.append(step)
    return steps


def _groups(device: str, accelerators: Sequence[str]) -> Sequence[frozenset[int]]:
    """The groups of cores of which a device is one.

    A GPU takes no core: whoever asks it waits. Its intervals take turns.
    """
    if device in accelerators:
        return [frozenset({_FIRST_ACCELERATOR - accelerators.index(device)})]
    cores = usable_cores()
    count = min(share_count(device), len(cores))
    if count:
        size = len(cores) // count
        return [frozenset(cores[size * i : size * (i + 1)]) for i in range(count)]
    return [frozenset(cores_of(device) or cores)]


_timing = threading.local()


@contextmanager
def timing(is_alone: bool) -> Iterator[dict[int, float]]:
    """In runs of this thread, the milliseconds of each step are kept.

    Args:
        is_alone: Whether steps run one at a time, or side by side.

    Yields:
        The milliseconds that each step took in the last run, by number.
    """
    _timing.times, _timing.is_alone = {}, is_alone
    try:
        yield _timing.times
    finally:
        _timing.times = None


def _step(
    step: Step, operator: Any, numbers: Mapping[str, int]
) -> tuple[Any, list[int], list[list[int]], list[int], list[int]]:
    """A step as the core takes it; ``numbers`` of the variables that steps make."""
    reads, writes = (
        [numbers[vid] for vid in dict.fromkeys(vids) if vid in numbers]
        for vids in (step.reads, step.writes)
    )
    return operator, sorted(step.after), [sorted(group) for group in step.groups], reads, writes


def _width(schedule: Schedule) -> int:
    """How many steps may run at once: no more than there are devices without others in them."""
    groups = {group for step in schedule.steps for group in step.groups}
    return sum(not any(other < group for other in groups) for group in groups)


class PlannedProgram:
    """A program whose engine operators run side by side. One run at a time.

    Args:
        schedule: The program.
        scope: Where its variables are; all of them have to exist.
    """

    def __init__(self, schedule: Schedule, scope: Scope) -> None:
        self._schedule = schedule
        self._scope = scope
        self._own_scope = _core.OwnedScope(new_scope(), remove_scope)
        made = [vid for step in schedule.steps for vid in step.writes]
        owned = [*made, *schedule.fed, *schedule.rows]
        self._slots = {vid: self._own_scope.scope.var(vid).get_tensor() for vid in owned}
        kept = {vid: n for vid, n in schedule.sources.items() if vid not in schedule.fed}
        given = {**self._slots, **{vid: _tensor(scope, name) for vid, name in kept.items()}}
        numbers = {vid: number for number, vid in enumerate(made)}
        steps = [
            _step(step, self._operator(step, [given[vid] for vid in step.reads]), numbers)
            for step in schedule.steps
        ]
        engine = _core.DataDependencyEngine(
            steps, [self._slots[vid] for vid in made], [numbers[vid] for vid in schedule.fetches]
        )
        self._own_scope.set_user(engine)
        self._thread_tuners: LRUCache[tuple[tuple[int, ...], ...], _ThreadCountTuner] = LRUCache(
            _MAX_TUNED_SHAPES
        )
        self._lock = new_lock()

    def _operator(self, step: Step, given: list[Tensor]) -> Any:
        """What runs a step."""
        if step.node.is_engine:
            return _interval(step, given)
        if step.states:
            return _Collective(step, self._own_scope.scope)
        return _core.ConcatRows(given)

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs it on arrays, which are read in place.

        Args:
            feed: By name, as for ``Executor.run``.

        Returns:
            What is fetched. ``None``, without having run anything, if the feed is not one
            contiguous array of the declared dtype and shape for each variable.

        Raises:
            As in :meth:`run`.
        """
        schedule = self._schedule
        if not schedule.takes_arrays or len(feed) != len(schedule.fed):
            return None
        with signals.deferred_signals(except_ctrl_c=True), self._lock:
            try:
                for vid in schedule.fed:
                    array = feed.get(schedule.sources[vid])
                    if not _core.view_array(self._slots[vid], array, *schedule.declared[vid]):
                        return None
                return _core.share_as_arrays(self._run_steps())
            finally:
                self._clear_feeds()

    def _clear_feeds(self) -> None:
        for vid in (*self._schedule.fed, *self._schedule.rows):
            clear_tensor(self._slots[vid])

    def run(self) -> list[Tensor]:
        """Runs it on the contents of the scope, and consumes the feeds.

        Returns:
            What is fetched.

        Raises:
            What the first of the operators raises that fail, in program order. The feeds are then
            still there.
        """
        with signals.deferred_signals(except_ctrl_c=True), self._lock:
            try:
                names = self._schedule.sources
                fed = {vid: _tensor(self._scope, names[vid]) for vid in sorted(self._schedule.fed)}
                for vid, tensor in fed.items():
                    _core.share_tensor(self._slots[vid], tensor)
                fetched = self._run_steps()
            finally:
                self._clear_feeds()
            for tensor in fed.values():
                clear_tensor(tensor)
            return fetched

    def _divide_feeds(self) -> None:
        parts: dict[tuple[str, int], list[Tensor]] = {}
        for vid, (whole, number, count) in self._schedule.rows.items():
            if (whole, count) not in parts:
                parts[whole, count] = _core.split_rows(self._slots[whole], count)
            _core.share_tensor(self._slots[vid], parts[whole, count][number])

    def _run_steps(self) -> list[Tensor]:
        self._divide_feeds()
        engine: _core.DataDependencyEngine = self._own_scope.user
        times: dict[int, float] | None = getattr(_timing, "times", None)
        if times is None:
            shapes = tuple(tuple(self._slots[vid].shape()) for vid in self._schedule.fed)
            pace = self._thread_tuners.get_or_create(
                shapes, lambda: _ThreadCountTuner(self._schedule)
            )
            return pace.run(engine.run)
        fetched = engine.run(1 if _timing.is_alone else _width(self._schedule))
        times.update(enumerate(engine.last_ms))
        return fetched


def _interval(step: Step, given: list[Tensor]) -> Any:
    kept = list(range(len(step.writes)))
    return _core.WholeProgram(step.node.graph, step.node.op.attrs()["interval"], given, [], kept)


class _ThreadCountTuner:
    """In how many threads a schedule runs: in several, or in one where that is faster.

    To wake a thread may take longer than short steps gain by running side by side. The first runs
    are in several threads, the next ones in one, and their times decide, for a thousand runs: then
    it is asked again. Results do not depend on it. Collectives wait for other ranks, and long runs
    need no such look.

    Args:
        schedule: What is run.
        now: The clock.
    """

    def __init__(self, schedule: Schedule, now: Clock = clock.now) -> None:
        self._now = now
        several = _width(schedule)
        has_collectives = any(step.groups == [_LINK_GROUP] for step in schedule.steps)
        is_known = several == 1 or has_collectives
        self._threads, self._runs_until_retuned = several, sys.maxsize if is_known else 0
        self._trials: dict[int, list[float]] = {several: [], 1: []}

    def run(self, run: Callable[[int], T]) -> T:
        """Calls ``run`` with a number of threads."""
        if self._runs_until_retuned > 0:
            self._runs_until_retuned -= 1
            return run(self._threads)
        threads = next(
            n for n, times in self._trials.items() if len(times) < _WARMUP_RUNS + _TRIAL_RUNS
        )
        before = _core.engine_stats()["native_runs"]
        start = self._now()
        results = run(threads)
        ms = (self._now() - start) * 1e3
        if _core.engine_stats()["native_runs"] == before:  # else something is still being compiled
            self._note(threads, ms)
        return results

    def _note(self, threads: int, ms: float) -> None:
        self._trials[threads].append(ms)
        counted = {count: times[_WARMUP_RUNS:] for count, times in self._trials.items()}
        if len(counted[1]) == _TRIAL_RUNS:
            self._decide(min(counted, key=lambda count: statistics.median(counted[count])))
        elif min(counted[threads], default=0.0) > _MAX_TUNED_MS:
            self._decide(max(counted))

    def _decide(self, threads: int) -> None:
        self._threads, self._runs_until_retuned = threads, _RUNS_BEFORE_RETUNING
        for times in self._trials.values():
            times.clear()


class _Collective:
    """A collective of Paddle's, as a program of its own: it overwrites a variable of a scope.

    Args:
        step: What it is.
        scope: Where the variable is, under its id.
    """

    def __init__(self, step: Step, scope: Scope) -> None:
        program = paddle.pir.Program()
        (vid,) = step.reads
        source = step.node.op.operand_source(0)
        build = Builder(program.global_block())
        variable = build.variable(vid, list(source.shape), dtype_name(source.dtype))
        build.like(step.node.op, [variable])
        with _PIR_IN_EXECUTOR:
            plan = PaddlePlan([PaddleJob("default")], {"default": program})
            self._executor = StandaloneExecutor(paddle.CPUPlace(), plan, scope)

    def run(self) -> Sequence[Tensor]:
        """Waits for the other ranks. Raises what Paddle raises if one of them has gone."""
        with _PIR_IN_EXECUTOR, _IN_THIS_THREAD:
            self._executor.run([], False)
        return ()


def _tensor(scope: Scope, name: str) -> Tensor:
    variable = scope.find_var(name)
    assert variable is not None  # who made this has looked
    return variable.get_tensor()
