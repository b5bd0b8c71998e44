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
from typing import Any, NamedTuple, Protocol

import numpy as np
import paddle

from paddle_ngraph import _core, interruptions
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
from paddle_ngraph.program import dependencies
from paddle_ngraph.program.placement import LINK, cores_of, parts_of
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


class RowPart(NamedTuple):
    """A part of a variable along axis 0.

    Attributes:
        read: Which of the variables that a step reads.
        number: Which part.
        parts: Of how many equal ones.
    """

    read: int
    number: int
    parts: int


@dataclass(frozen=True)
class Step:
    """An engine operator of a program, or a collective.

    Attributes:
        node: The operator.
        groups: The cores of its device; or several groups of cores, of which it takes one.
        after: The numbers of the steps that it waits for.
        reads: The variables that it is given: inputs, then states, by the ids of their memory.
        states: Those of them that it overwrites.
        writes: The variables that it makes; none for a collective, which overwrites what it reads.
        views: What it returns, if all it does is to split what it reads, and results can share that
            memory: nobody overwrites or fetches them.
    """

    node: OpNode
    groups: Sequence[frozenset[int]]
    after: frozenset[int]
    reads: Sequence[str]
    states: Sequence[str]
    writes: Sequence[str]
    views: Sequence[RowPart] = ()


@dataclass(frozen=True)
class Schedule:
    """A program as steps.

    Attributes:
        steps: Its engine operators and collectives, in program order.
        sources: The names of the variables of the scope that they read, by id.
        fed: Those of them that a run consumes.
        declared: The dtype and the shape of each of those.
        takes_arrays: Whether arrays can stand for all that is fed, and for all that is fetched.
        fetches: What is fetched, by column.
    """

    steps: Sequence[Step]
    sources: Mapping[str, str]
    fed: Collection[str]
    declared: Mapping[str, tuple[str, list[int]]]
    takes_arrays: bool
    fetches: Sequence[str]


def schedule_of(program: Program) -> Schedule | None:
    """A program as steps; ``None`` if it computes or names anything besides, or is on no device."""
    view = BlockView(program.global_block())
    engines = [node for node in view.nodes if node.is_engine]
    collectives = [node for node in view.nodes if node.device == LINK]
    others = [node for node in view.nodes if not node.is_engine and node not in collectives]
    if len(engines) < 2 or any(n.type not in SOURCES | LISTS | {FETCH} for n in others):
        return None
    graphs = {node: Graph.from_string(node.graph) for node in engines}
    if not collectives and not any(graph.device for graph in graphs.values()):
        return None
    sources = {n.writes[0]: n for n in others if n.is_source and view.readers.get(n.writes[0])}
    if any(node.type == "builtin.constant" for node in sources.values()):
        return None
    fetches = {n.op.attrs()["col"]: view.root(n.reads[0]) for n in others if n.type == FETCH}
    made = {vid for node in engines for vid in node.writes[: len(graphs[node].outputs)]}
    communicated = {view.root(vid) for node in collectives for vid in node.reads}
    if sorted(fetches) != list(range(len(fetches))) or not communicated <= made:
        return None
    if not (made - communicated).issuperset(fetches.values()):
        return None
    steps = _steps(view, graphs, fetches.values())
    read = {vid for step in steps for vid in step.reads}
    if not read <= made | sources.keys():
        return None
    fed = {
        vid: node.op.result(0) for vid, node in sources.items() if is_fed(node.op) and vid in read
    }
    overwritten = {vid for step in steps for vid in step.states}
    crossing = [*fed.values(), *(view.values[vid] for vid in fetches.values())]
    fits = all(dtype_name(value.dtype) in OF_NUMPY for value in crossing)
    return Schedule(
        steps=steps,
        sources={vid: scope_name(node.op) for vid, node in sources.items() if vid in read},
        fed=set(fed),
        declared={vid: (dtype_name(v.dtype), list(v.shape)) for vid, v in fed.items()},
        takes_arrays=fits and overwritten.isdisjoint(fed),
        fetches=[fetches[column] for column in range(len(fetches))],
    )


def _steps(view: BlockView, graphs: Mapping[OpNode, Graph], fetched: Collection[str]) -> list[Step]:
    def deeds(node: OpNode) -> frozenset[str]:
        return node.ordered if not node.is_engine or node.draws else node.ordered - {DRAW}

    others = dependencies.by_memory_and_order(view, lambda node: False, deeds)
    nodes = [node for node in view.nodes if node in graphs or node.device == LINK]
    numbers = {node: number for number, node in enumerate(nodes)}
    steps = []
    for node in nodes:
        members = [m for vid in node.reads for m in view.members(vid)]
        makers = [view.producer.get(view.root(member)) for member in members]
        after = {numbers[m] for m in [*makers, *others[node]] if m in numbers and m is not node}
        reads = [view.root(member) for member in members]
        graph = graphs.get(node)
        steps.append(
            Step(
                node=node,
                groups=_groups(graph.device) if graph else [_LINK],
                after=frozenset(after),
                reads=reads,
                states=reads[len(graph.inputs) :] if graph else reads,
                writes=node.writes[: len(graph.outputs)] if graph else [],
                views=_row_parts(graph) if graph else (),
            )
        )
    kept = {*fetched, *(vid for step in steps for vid in step.states)}
    return [  # those that are kept have memory of their own
        step if kept.isdisjoint([*step.reads, *step.writes]) else replace(step, views=())
        for step in steps
    ]


def _row_parts(graph: Graph) -> Sequence[RowPart]:
    """What a graph returns, if all that it does is to split inputs into equal parts of rows."""
    first = {
        op.output("out").id for op in graph.ops if op.type == "pd_op.full" and not op.attr("value")
    }
    inputs = {spec.id: number for number, spec in enumerate(graph.inputs)}
    found: dict[int, RowPart] = {}
    for op in graph.ops:
        if op.type == "pd_op.split_with_num" and op.input("axis").id in first:
            parts = op.outputs["out"]
            for number, spec in enumerate(parts):
                if spec is not None and op.input("x").id in inputs:
                    found[spec.id] = RowPart(inputs[op.input("x").id], number, len(parts))
    results = [spec.id for spec in graph.outputs]
    return [] if graph.states or not found.keys() >= set(results) else [found[r] for r in results]


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
        self._slots = {vid: self._own.var(vid).get_tensor() for vid in [*made, *schedule.fed]}
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
        if step.views:
            return _Views(step.views, given)
        return _interval(step, given) if step.node.is_engine else _Collective(step, self._own)

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
        with interruptions.put_off(but_ctrl_c=True), self._lock:
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
        with interruptions.put_off(but_ctrl_c=True), self._lock:
            try:
                names = self._schedule.sources
                fed = {vid: _tensor(self._scope, names[vid]) for vid in sorted(self._schedule.fed)}
                for vid, tensor in fed.items():
                    _core.share_tensor(self._slots[vid], tensor)
                fetched = self._run_steps()
            finally:
                self._clear_slots()
            for tensor in fed.values():
                clear_tensor(tensor)
            return fetched

    def _run_steps(self) -> list[Tensor]:
        times: dict[int, float] | None = getattr(_timing, "times", None)
        wanted = set(self._schedule.fetches)
        fetched: dict[str, Tensor] = {}
        readers = self._readers.copy()

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
            with interruptions.put_off():  # none of them may outlive the run
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


class _Views:
    """Parts of variables, in their memory.

    Args:
        views: Which.
        given: The variables.
    """

    def __init__(self, views: Sequence[RowPart], given: Sequence[Tensor]) -> None:
        self._views = views
        self._given = given

    def run(self) -> Sequence[Tensor]:
        """Raises NgraphError if one has too few rows for equal parts."""
        parts = {
            (v.read, v.parts): _core.rows_of(self._given[v.read], v.parts) for v in self._views
        }
        return [parts[view.read, view.parts][view.number] for view in self._views]


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
