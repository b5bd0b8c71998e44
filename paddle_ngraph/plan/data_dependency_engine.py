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

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import paddle

from paddle_ngraph import _core
from paddle_ngraph.dtypes import OF_NUMPY
from paddle_ngraph.graph import Graph
from paddle_ngraph.locks import new_condition, new_lock
from paddle_ngraph.paddle_seam.names import (
    ExecutionJob,
    ExecutionPlan,
    StandaloneExecutor,
    clear_tensor,
    new_scope,
)
from paddle_ngraph.paddle_seam.protocols import Program, Scope, Tensor
from paddle_ngraph.plan.devices import usable_cores
from paddle_ngraph.plan.rows import RowPart, only_divides, parts_of_rows, puts_rows_together
from paddle_ngraph.program import dependencies
from paddle_ngraph.program.placement import CPU, LINK, cores_of, parts_of
from paddle_ngraph.program.view import (
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
from paddle_ngraph.transpiler.building import Builder

# Where a collective runs: on none of the cores.
_LINK = frozenset({-1})
_PIR_IN_EXECUTOR = _core.SwitchedFlag("enable_pir_in_executor")
_IN_THIS_THREAD = _core.SwitchedFlag("enable_pir_in_executor_trace_run")
_EMPTY_RUNS = 101


@dataclass(frozen=True)
class Step:
    """An engine operator of a program, a collective, or what puts rows together.

    Attributes:
        node: The operator.
        groups: The cores of its device; or several groups of cores, of which it takes one.
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
    collectives = [node for node in view.nodes if node.device == LINK]
    joining = [node for node in view.nodes if puts_rows_together(view, node)]
    steps = _steps(view, graphs, [*graphs, *collectives, *joining])
    if not steps or (not collectives and not any(graph.device for graph in graphs.values())):
        return None
    known = {step.node for step in steps}
    others = [node for node in view.nodes if node not in known and not only_divides(view, node)]
    if any(node.type not in SOURCES | LISTS | {FETCH} for node in others):
        return None
    read = {vid for step in steps for vid in step.reads}
    parts = {vid: part for vid, part in parts_of_rows(view).items() if vid in read}
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
    fits = all(dtype_name(value.dtype) in OF_NUMPY for value in crossing)
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
        return node.ordered if not node.is_engine or node.draws else node.ordered - {DRAW}

    if len(graphs) < 2:
        return []
    others = dependencies.by_memory_and_order(view, lambda node: False, deeds)
    nodes = sorted(nodes, key=attrgetter("index"))
    numbers = {node: number for number, node in enumerate(nodes)}
    steps = []
    for node in nodes:
        graph = graphs.get(node)
        is_native = graph is None and node.device != LINK
        given = node.reads[:1] if is_native else node.reads  # what it puts together, not the axis
        members = [m for vid in given for m in view.members(vid)]
        makers = [view.producer.get(view.root(member)) for member in members]
        after = {numbers[m] for m in [*makers, *others[node]] if m in numbers and m is not node}
        reads = [view.root(member) for member in members]
        step = Step(node, _groups(CPU), frozenset(after), reads, [], node.writes)
        if graph is not None:
            states, made = reads[len(graph.inputs) :], node.writes[: len(graph.outputs)]
            step = replace(step, groups=_groups(graph.device), states=states, writes=made)
        elif node.device == LINK:
            step = replace(step, groups=[_LINK], states=reads, writes=[])
        steps.append(step)
    return steps


def _groups(device: str) -> Sequence[frozenset[int]]:
    """The groups of cores of which a device is one."""
    cores = usable_cores()
    count = min(parts_of(device), len(cores))
    if count:
        size = len(cores) // count
        return [frozenset(cores[size * i : size * (i + 1)]) for i in range(count)]
    return [frozenset(cores_of(device) or cores)]


_timing = threading.local()


@contextmanager
def timing() -> Iterator[dict[int, float]]:
    """In runs of this thread, steps run one at a time, and the milliseconds of each are kept.

    Yields:
        The milliseconds that each step took in the last run, by number.
    """
    _timing.times = {}
    try:
        yield _timing.times
    finally:
        _timing.times = None


def starting_ms(schedule: Schedule) -> float:
    """What it takes to start the steps of a run in several threads, in milliseconds.

    That is how much longer a run takes in several threads than in one if no step computes anything.
    """
    helpers = _width(schedule) - 1
    with ThreadPoolExecutor(max(1, helpers)) as pool:
        alone, together = (
            statistics.median(_ms_of_empty_run(schedule, pool, count) for _ in range(_EMPTY_RUNS))
            for count in (0, helpers)
        )
    return max(0.0, together - alone)


def _ms_of_empty_run(schedule: Schedule, pool: ThreadPoolExecutor, helpers: int) -> float:
    start = time.perf_counter()
    run = _Run(schedule.steps, lambda number: None, lambda number: None)
    waiting = [pool.submit(run.work) for _ in range(helpers)]
    run.work()
    wait(waiting)
    return (time.perf_counter() - start) * 1e3


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
        self._own = new_scope()
        made = {vid for step in schedule.steps for vid in step.writes}
        owned = [*made, *schedule.fed, *schedule.rows]
        self._slots = {vid: self._own.var(vid).get_tensor() for vid in owned}
        kept = {vid: n for vid, n in schedule.sources.items() if vid not in schedule.fed}
        given = {**self._slots, **{vid: _tensor(scope, name) for vid, name in kept.items()}}
        self._operators: list[_Operator] = [
            self._operator(step, [given[vid] for vid in step.reads]) for step in schedule.steps
        ]
        self._readers = Counter(
            vid for step in schedule.steps for vid in set(step.reads) if vid in made
        )
        self._lock = new_lock()
        self._helpers: ThreadPoolExecutor | None = None
        self._process = 0

    def _operator(self, step: Step, given: Sequence[Tensor]) -> _Operator:
        if step.node.is_engine:
            return _interval(step, given)
        return _Collective(step, self._own) if step.states else _Rows(given)

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
        with self._lock:
            try:
                for vid in schedule.fed:
                    array = feed.get(schedule.sources[vid])
                    if not _core.view_array(self._slots[vid], array, *schedule.declared[vid]):
                        return None
                return _core.hand_over(self._run_steps())
            finally:
                self._clear_slots()

    def _clear_slots(self) -> None:
        for slot in self._slots.values():
            clear_tensor(slot)

    def run(self) -> list[Tensor]:
        """Runs it on the contents of the scope, and consumes the feeds.

        Returns:
            What is fetched.

        Raises:
            What the first of the operators raises that fail, in program order. The feeds are then
            still there.
        """
        with self._lock:
            names = self._schedule.sources
            fed = {vid: _tensor(self._scope, names[vid]) for vid in sorted(self._schedule.fed)}
            for vid, tensor in fed.items():
                _core.share_tensor(self._slots[vid], tensor)
            try:
                fetched = self._run_steps()
            finally:
                self._clear_slots()
            for tensor in fed.values():
                clear_tensor(tensor)
            return fetched

    def _divide_feeds(self) -> None:
        parts: dict[tuple[str, int], list[Tensor]] = {}
        for vid, (whole, number, count) in self._schedule.rows.items():
            if (whole, count) not in parts:
                parts[whole, count] = _core.rows_of(self._slots[whole], count)
            _core.share_tensor(self._slots[vid], parts[whole, count][number])

    def _run_steps(self) -> list[Tensor]:
        times: dict[int, float] | None = getattr(_timing, "times", None)
        wanted = set(self._schedule.fetches)
        fetched: dict[str, Tensor] = {}
        readers = self._readers.copy()
        self._divide_feeds()

        def compute(number: int) -> None:
            start = time.perf_counter()
            results = self._operators[number].run()
            if times is not None:
                times[number] = (time.perf_counter() - start) * 1e3
            for vid, result in zip(self._schedule.steps[number].writes, results):
                if vid in wanted:
                    fetched[vid] = result
                if readers[vid]:
                    _core.share_tensor(self._slots[vid], result)

        def ended(number: int) -> None:
            for vid in set(self._schedule.steps[number].reads) & readers.keys():
                readers[vid] -= 1
                if not readers[vid]:  # its memory can be used again
                    clear_tensor(self._slots[vid])

        run = _Run(self._schedule.steps, compute, ended)
        helpers: list[Future[None]] = []
        try:
            if times is None:
                self._help(run, helpers)
            run.work()
        finally:
            run.stop()
            wait(helpers)
        run.raise_failure()
        return [fetched[vid] for vid in self._schedule.fetches]

    def _help(self, run: _Run, helpers: list[Future[None]]) -> None:
        """Has other threads work on a run, and adds them to ``helpers``.

        Once the main thread has ended, Python's pools take no work: whoever runs it does it alone.
        """
        with suppress(RuntimeError):
            for _ in range(_width(self._schedule) - 1):
                helpers.append(self._pool().submit(run.work))

    def _pool(self) -> ThreadPoolExecutor:
        if self._helpers is None or self._process != os.getpid():  # a fork has none of the threads
            self._helpers = ThreadPoolExecutor(_width(self._schedule) - 1, "paddle_ngraph_plan")
            self._process = os.getpid()
        return self._helpers


class _Operator(Protocol):
    """What runs a step."""

    def run(self) -> Sequence[Tensor]: ...


def _interval(step: Step, given: Sequence[Tensor]) -> _Operator:
    kept = list(range(len(step.writes)))
    interval = step.node.op.attrs()["interval"]
    return _core.WholeProgram(step.node.graph, interval, list(given), [], kept)


class _Rows:
    """Puts the rows of variables one after the other."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        self._given = list(given)

    def run(self) -> Sequence[Tensor]:
        """Raises NgraphError if they do not fit."""
        return [_core.rows_together(self._given)]


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
            plan = ExecutionPlan([ExecutionJob("default")], {"default": program})
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


class _Run:
    """One run of steps, by any number of threads that each call :meth:`work`.

    Args:
        steps: In program order.
        compute: Called with the number of a step, by several threads at once.
        ended: Called with the number of a step that has succeeded, by one thread at a time.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        compute: Callable[[int], None],
        ended: Callable[[int], None],
    ) -> None:
        self._steps = steps
        self._compute = compute
        self._ended = ended
        self._changed = new_condition()
        self._missing = [set(step.after) for step in steps]
        self._followers: list[list[int]] = [[] for _ in steps]
        for number, step in enumerate(steps):
            for before in step.after:
                self._followers[before].append(number)
        self._waiting = list(range(len(steps)))
        self._busy: dict[int, frozenset[int]] = {}
        self._failures: dict[int, BaseException] = {}

    def work(self) -> None:
        """Runs steps until none is left to start."""
        while (number := self._take()) is not None:
            failure: BaseException | None = None
            try:
                self._compute(number)
            except BaseException as error:  # raised again by raise_failure
                failure = error
            self._end(number, failure)

    def stop(self) -> None:
        """Starts no other step."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raises what the first of the steps raised that failed, in program order."""
        if self._failures:
            raise self._failures[min(self._failures)]

    def _take(self) -> int | None:
        """The next step to start; waits for it. ``None`` when nothing is left to start."""
        with self._changed:
            while self._waiting:
                busy = frozenset().union(*self._busy.values())
                for number in self._waiting:
                    groups = () if self._missing[number] else self._steps[number].groups
                    free = next((group for group in groups if busy.isdisjoint(group)), None)
                    if free is not None:
                        self._waiting.remove(number)
                        self._busy[number] = free
                        return number
                self._changed.wait()
            return None

    def _end(self, number: int, failure: BaseException | None) -> None:
        with self._changed:
            del self._busy[number]
            if failure is None:
                for follower in self._followers[number]:
                    self._missing[follower].discard(number)
                self._ended(number)
            else:
                self._failures[number] = failure
                self._waiting.clear()
            self._changed.notify_all()
