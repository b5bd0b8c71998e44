"""Data-dependency engine: runs each subgraph of a program as soon as its inputs are ready.

A program of engine operators, and collectives between them, runs without Paddle's interpreter.
Dependencies are computed in advance: data, overwritten memory, and the order of stochastic
operators. A run starts operators in program order as soon as their predecessors have finished and
the cores of their device are free. Therefore no core computes two subgraphs at once, for any number
of threads, and results do not depend on the speed of operators.

A collective placed on the link takes no core: it runs concurrently with all independent operators.
Collectives run one at a time in program order, which is equal on every rank.

An operator acquires all cores of its device at once, or waits without holding any, so that no
deadlock can occur. After a failure, no further operator is started; running ones finish, and the
error is raised in the thread that called the run.
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
    scope_remover,
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
from paddle_ngraph.plan.rows import RowSlice, is_row_concat, is_row_split, row_slices
from paddle_ngraph.statistics import native_runs
from paddle_ngraph.transpiler.building import Builder
from paddle_ngraph.utils import clock, signals
from paddle_ngraph.utils.clock import Clock
from paddle_ngraph.utils.dtypes import NUMPY_DTYPES
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each

# The resource that a collective occupies: the network link, with an id that no core has.
_LINK_GROUP = frozenset({-1})
# The resource id of the first GPU or NPU; other accelerators have lower ids.
_FIRST_ACCELERATOR = -2
_PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
_IN_THIS_THREAD = _core.FlagOverride("enable_pir_in_executor_trace_run")
# Timed runs and warm-up runs per thread count in the tuner; programs whose runs take longer than
# the maximum (in milliseconds) are not tuned.
_TRIAL_RUNS, _WARMUP_RUNS, _MAX_TUNED_MS = 7, 2, 10.0
_RUNS_BEFORE_RETUNING = 1000
_THREAD_TUNERS = cache_of_each(
    "program with an execution plan",
    __name__,
    "thread_tuners",
    "trials of thread counts, and the choice",
    key="shapes of the feed",
    bound=16,
)
T = TypeVar("T")


@dataclass(frozen=True)
class ScheduleStep:
    """A step of a schedule: an engine operator, a collective, or a concatenation of rows.

    Attributes:
        node: The operator.
        groups: The cores of its device; or several core groups, of which it takes one. A step
            without cores has a negative resource id instead, of its device or of the link.
        after: The indices of its predecessors.
        reads: The ids of the memory of its operands: inputs, then states.
        states: The operands that it overwrites.
        writes: The ids of its results; none for a collective, which overwrites its operand.
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
        steps: The engine operators, collectives, and concatenations of rows, in program order.
        sources: The names of the scope variables that they read, by id.
        rows: Slices of feeds that are read in place: equal slices along axis 0, by id.
        fed: The ids of the sources that a run consumes.
        declared: The dtype and the shape of each feed.
        takes_arrays: Whether all feeds and fetches can be NumPy arrays.
        fetches: The ids of fetched variables, by column.
    """

    steps: Sequence[ScheduleStep]
    sources: Mapping[str, str]
    rows: Mapping[str, RowSlice]
    fed: Collection[str]
    declared: Mapping[str, tuple[str, list[int]]]
    takes_arrays: bool
    fetches: Sequence[str]


def schedule_of(program: Program) -> Schedule | None:
    """Returns a program as steps; ``None`` if it has other operators, or no operator is placed."""
    view = BlockView(program.global_block())
    graphs = {node: Graph.from_string(node.graph) for node in view.nodes if node.is_engine}
    collectives = [node for node in view.nodes if node.device == LINK_DEVICE]
    concats = [node for node in view.nodes if is_row_concat(view, node)]
    steps = _steps(view, graphs, [*graphs, *collectives, *concats])
    if not steps or (not collectives and not any(graph.device for graph in graphs.values())):
        return None
    known = {step.node for step in steps}
    others = [node for node in view.nodes if node not in known and not is_row_split(view, node)]
    if any(node.type not in SOURCES | LISTS | {FETCH} for node in others):
        return None
    read = {vid for step in steps for vid in step.reads}
    slices = {vid: row_slice for vid, row_slice in row_slices(view).items() if vid in read}
    read |= {row_slice.whole for row_slice in slices.values()}
    sources = {n.writes[0]: n for n in others if n.is_source and n.writes[0] in read}
    if any(node.type == "builtin.constant" for node in sources.values()):
        return None
    fetches = {n.op.attrs()["col"]: view.root(n.reads[0]) for n in others if n.type == FETCH}
    computed = {vid for step in steps for vid in step.writes}
    communicated = {view.root(vid) for node in collectives for vid in node.reads}
    if sorted(fetches) != list(range(len(fetches))) or not communicated <= computed:
        return None
    if not (computed - communicated).issuperset(fetches.values()):
        return None
    if not read <= computed | sources.keys() | slices.keys():
        return None
    fed = {vid: node.op.result(0) for vid, node in sources.items() if is_fed(node.op)}
    overwritten = {vid for step in steps for vid in step.states}
    wholes = {row_slice.whole for row_slice in slices.values()}
    if not wholes <= fed.keys() or not overwritten.isdisjoint(wholes | slices.keys()):
        # No schedule: an overwritten variable needs memory of its own, but slices are views of a
        # feed.
        return None
    crossing = [*fed.values(), *(view.values[vid] for vid in fetches.values())]
    fits = all(dtype_name(value.dtype) in NUMPY_DTYPES for value in crossing)
    return Schedule(
        steps=steps,
        sources={vid: scope_name(node.op) for vid, node in sources.items()},
        rows=slices,
        fed=set(fed),
        declared={vid: (dtype_name(v.dtype), list(v.shape)) for vid, v in fed.items()},
        takes_arrays=fits and overwritten.isdisjoint(fed),
        fetches=[fetches[column] for column in range(len(fetches))],
    )


def _steps(
    view: BlockView, graphs: Mapping[OpNode, Graph], nodes: Collection[OpNode]
) -> list[ScheduleStep]:
    """Returns ``nodes`` as schedule steps; none if fewer than two of them are engine operators."""

    def effects(node: OpNode) -> frozenset[str]:
        return node.effects if not node.is_engine or node.draws else node.effects - {DRAW}

    if len(graphs) < 2:
        return []
    others = dependencies.memory_and_effect_dependencies(view, lambda node: False, effects)
    nodes = sorted(nodes, key=attrgetter("index"))
    indices = {node: index for index, node in enumerate(nodes)}
    accelerators = sorted({g.device for g in graphs.values() if is_accelerator(g.device)})
    steps = []
    for node in nodes:
        graph = graphs.get(node)
        is_native = graph is None and node.device != LINK_DEVICE
        # Of a concatenation of rows, the engine reads only the list, and not the operand axis.
        operands = node.reads[:1] if is_native else node.reads
        members = [m for vid in operands for m in view.members(vid)]
        producers = [view.producer.get(view.root(member)) for member in members]
        after = {indices[m] for m in [*producers, *others[node]] if m in indices and m is not node}
        reads = [view.root(member) for member in members]
        step = ScheduleStep(
            node, _groups(CPU, accelerators), frozenset(after), reads, [], node.writes
        )
        if graph is not None:
            states, outputs = reads[len(graph.inputs) :], node.writes[: len(graph.outputs)]
            step = replace(
                step, groups=_groups(graph.device, accelerators), states=states, writes=outputs
            )
        elif node.device == LINK_DEVICE:
            step = replace(step, groups=[_LINK_GROUP], states=reads, writes=[])
        steps.append(step)
    return steps


def _groups(device: str, accelerators: Sequence[str]) -> Sequence[frozenset[int]]:
    """The groups of cores, of which a step on ``device`` occupies one.

    A GPU takes no core: its callers wait. Its subgraphs run one at a time.
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
    """Records the time of each step in the runs that this thread starts in the ``with`` block.

    Args:
        is_alone: Whether steps run one at a time, or concurrently.

    Yields:
        The milliseconds of each step in the last run, by index.
    """
    _timing.times, _timing.is_alone = {}, is_alone
    try:
        yield _timing.times
    finally:
        _timing.times = None


def _step(
    step: ScheduleStep, operator: Any, indices: Mapping[str, int]
) -> tuple[Any, list[int], list[list[int]], list[int], list[int]]:
    """A step as the core's engine expects it. ``indices``: the index of each variable, by id."""
    reads, writes = (
        [indices[vid] for vid in dict.fromkeys(vids) if vid in indices]
        for vids in (step.reads, step.writes)
    )
    return operator, sorted(step.after), [sorted(group) for group in step.groups], reads, writes


def _width(schedule: Schedule) -> int:
    """The maximum number of concurrent steps: as many as device groups with no group inside."""
    groups = {group for step in schedule.steps for group in step.groups}
    return sum(not any(other < group for other in groups) for group in groups)


class PlannedProgram:
    """A program whose engine operators run concurrently. One run at a time.

    Args:
        schedule: The program.
        scope: The scope of its variables, all of which have to exist.
    """

    def __init__(self, schedule: Schedule, scope: Scope) -> None:
        self._schedule = schedule
        self._scope = scope
        self._own_scope = _core.OwnedScope(new_scope(), scope_remover())
        computed = [vid for step in schedule.steps for vid in step.writes]
        owned = [*computed, *schedule.fed, *schedule.rows]
        self._slots = {vid: self._own_scope.scope.var(vid).get_tensor() for vid in owned}
        persistent = {vid: n for vid, n in schedule.sources.items() if vid not in schedule.fed}
        given = {**self._slots, **{vid: _tensor(scope, name) for vid, name in persistent.items()}}
        indices = {vid: index for index, vid in enumerate(computed)}
        steps = [
            _step(step, self._operator(step, [given[vid] for vid in step.reads]), indices)
            for step in schedule.steps
        ]
        engine = _core.DataDependencyEngine(
            steps,
            [self._slots[vid] for vid in computed],
            [indices[vid] for vid in schedule.fetches],
        )
        self._own_scope.set_user(engine)
        self._thread_tuners: LRUCache[tuple[tuple[int, ...], ...], _ThreadCountTuner] = LRUCache(
            _THREAD_TUNERS.bound
        )
        self._lock = new_lock()

    def _operator(self, step: ScheduleStep, given: list[Tensor]) -> Any:
        """The object that computes a step: engine operator, collective program or concatenation."""
        if step.node.is_engine:
            return _interval(step, given)
        if step.states:
            return _CollectiveProgram(step, self._own_scope.scope)
        return _core.ConcatRows(given)

    def run_on(self, feed: Mapping[str, Any]) -> list[np.ndarray] | None:
        """Runs the program on arrays, which are read in place.

        Args:
            feed: Arrays by name, as for ``Executor.run``.

        Returns:
            The fetched arrays. ``None``, without a run, if the feed is not one contiguous array of
            the declared dtype and shape for each variable.

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
        """Runs the program on the contents of the scope, and clears the variables of the feeds.

        Returns:
            The fetched tensors.

        Raises:
            Exception: The error of the first failed operator in program order. The feeds are not
                cleared then.
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

    def _split_feeds(self) -> None:
        slices: dict[tuple[str, int], list[Tensor]] = {}
        for vid, (whole, index, count) in self._schedule.rows.items():
            if (whole, count) not in slices:
                slices[whole, count] = _core.split_rows(self._slots[whole], count)
            _core.share_tensor(self._slots[vid], slices[whole, count][index])

    def _run_steps(self) -> list[Tensor]:
        self._split_feeds()
        engine: _core.DataDependencyEngine = self._own_scope.user
        times: dict[int, float] | None = getattr(_timing, "times", None)
        if times is None:
            shapes = tuple(tuple(self._slots[vid].shape()) for vid in self._schedule.fed)
            tuner = self._thread_tuners.get_or_create(
                shapes, lambda: _ThreadCountTuner(self._schedule)
            )
            return tuner.run(engine.run)
        fetched = engine.run(1 if _timing.is_alone else _width(self._schedule))
        times.update(enumerate(engine.last_ms))
        return fetched


def _interval(step: ScheduleStep, given: list[Tensor]) -> Any:
    outputs = list(range(len(step.writes)))
    return _core.WholeProgram(step.node.graph, step.node.op.attrs()["interval"], given, [], outputs)


class _ThreadCountTuner:
    """Autotuner of the thread count of a schedule: several threads, or one if that is faster.

    Waking a thread may take longer than short steps gain by running concurrently. The first runs
    use several threads, the next ones a single thread, and their median times decide for a thousand
    runs, after which the trial is repeated. Results do not depend on the thread count. Schedules
    with collectives, which wait for other ranks, and long runs are not tuned.

    Args:
        schedule: The schedule.
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
        """Calls ``run`` with the thread count to use now; in a trial of counts, times it."""
        if self._runs_until_retuned > 0:
            self._runs_until_retuned -= 1
            return run(self._threads)
        threads = next(
            n for n, times in self._trials.items() if len(times) < _WARMUP_RUNS + _TRIAL_RUNS
        )
        before = native_runs()
        start = self._now()
        results = run(threads)
        ms = (self._now() - start) * 1e3
        # Omits the time of a run in which a subgraph fell back, since its function is still being
        # compiled.
        if native_runs() == before:
            self._record(threads, ms)
        return results

    def _record(self, threads: int, ms: float) -> None:
        self._trials[threads].append(ms)
        timed = {count: times[_WARMUP_RUNS:] for count, times in self._trials.items()}
        if len(timed[1]) == _TRIAL_RUNS:
            self._decide(min(timed, key=lambda count: statistics.median(timed[count])))
        elif min(timed[threads], default=0.0) > _MAX_TUNED_MS:
            self._decide(max(timed))

    def _decide(self, threads: int) -> None:
        self._threads, self._runs_until_retuned = threads, _RUNS_BEFORE_RETUNING
        for times in self._trials.values():
            times.clear()


class _CollectiveProgram:
    """A collective of Paddle in a separate program, which overwrites a variable of a scope.

    Args:
        step: The step of the collective.
        scope: The scope of the variable, which is named by its id.
    """

    def __init__(self, step: ScheduleStep, scope: Scope) -> None:
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
        """Runs the collective, which waits for the other ranks.

        Raises Paddle's error if one of them has exited.
        """
        with _PIR_IN_EXECUTOR, _IN_THIS_THREAD:
            self._executor.run([], False)
        return ()


def _tensor(scope: Scope, name: str) -> Tensor:
    variable = scope.find_var(name)
    # The caller has checked that the variable exists.
    assert variable is not None
    return variable.get_tensor()
