"""Automatic plan: selects the fastest of several plans for a program on this machine.

Every subgraph of a plan is timed on the cores of its device, alone and concurrently with others.
From these times and the dependencies, the discrete-event simulation of many ranks
(``simulation/events.py``) predicts the time of a run; its scheduling is that of the data-dependency
engine. The serial plan, of one function, is timed as a whole, and so are plans whose prediction is
close to the best of these times; the fastest of them is chosen. All runs use copies of variables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import paddle

from paddle_ngraph.errors import NgraphError
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.paddle_private.names import set_random_states
from paddle_ngraph.paddle_private.protocols import Program as PirProgram
from paddle_ngraph.paddle_private.protocols import Scope, Value
from paddle_ngraph.partitioning import background_compile
from paddle_ngraph.partitioning.analysis.block_view import BlockView, scope_name
from paddle_ngraph.partitioning.analysis.placement import core_group, cores_of
from paddle_ngraph.plan import devices
from paddle_ngraph.plan.data_dependency_engine import Schedule, schedule_of, timing
from paddle_ngraph.plan.data_parallel import data_parallel, pipeline
from paddle_ngraph.plan.execution_plan import ExecutionPlan
from paddle_ngraph.simulation.events import Task, total_ms
from paddle_ngraph.transpiler.scope_copies import copies_of, variables_of
from paddle_ngraph.utils import clock, signals

SERIAL = "serial"
# Plans whose predicted time is within this ratio of the best one are timed: predictions are no more
# accurate.
_MAX_TIME_RATIO_TO_MEASURE = 1.15
_MAX_CORE_GROUPS = 8
# Numbers of slices with which pipelines are tried.
_PIPELINE_SLICES = (2, 4)
_Planned = tuple[PirProgram, list[Value]]
_Build = Callable[[], _Planned]
_MIN_RUNS, _MIN_SECONDS = 7, 0.5
# Tolerances against the serial plan: of results, relative to the largest value; of variables, by
# the norm of each; and of gradients that are only rounding errors, relative to the largest gradient
# of all.
_TOLERANCE, _VARIABLE_TOLERANCE, _ROUNDING = 1e-3, 5e-3, 1e-6
# Optimizers that divide by the magnitude of the gradient: for a gradient that is only a rounding
# error, they make updates of full size in the direction of its sign, which differ between plans
# without being wrong. By type: the operand from which the size of the gradient is compared instead,
# and the power of the operand that is linear in the gradient.
_NORMALIZING_OPTIMIZERS: dict[str, tuple[str, float]] = {
    **{f"pd_op.{name}_": ("moment1", 1.0) for name in ("adam", "adamw", "lamb", "nadam", "radam")},
    "pd_op.adamax_": ("moment", 1.0),
    "pd_op.adagrad_": ("moment", 0.5),
    "pd_op.decayed_adagrad_": ("moment", 0.5),
    "pd_op.adadelta_": ("avg_squared_grad", 0.5),
    "pd_op.rmsprop_": ("mean_square", 0.5),
    "pd_op.rprop_": ("prev", 1.0),
}


class SubgraphTimes(NamedTuple):
    """Measured times of the subgraphs of a plan, in milliseconds.

    Attributes:
        alone: Times of the subgraphs in program order, when they run one at a time.
        concurrent: Times of the subgraphs when they run concurrently, and share memory and caches.
        besides: Overhead of ``Executor.run`` in addition to its subgraphs.
    """

    alone: Sequence[float]
    concurrent: Sequence[float]
    besides: float


class Computed(NamedTuple):
    """The results of a run: the fetched arrays, and all variables after the run, by name."""

    fetched: Sequence[np.ndarray]
    variables: Mapping[str, np.ndarray]


class Stopwatch(Protocol):
    """Interface of an object that times plans, so that tests need no real time."""

    def steps(self, candidate: CandidatePlan) -> SubgraphTimes:
        """Times each subgraph of a candidate plan that has a schedule."""

    def run(self, candidate: CandidatePlan) -> float:
        """Times ``Executor.run`` of a candidate plan, in milliseconds."""


@dataclass(frozen=True)
class CandidatePlan:
    """A candidate plan of the program.

    Attributes:
        name: The name of the plan, as in :class:`Option`.
        program: The planned program.
        fetches: Variables of the planned program that correspond to those in the ``fetch_list``.
        schedule: The schedule of its subgraphs; ``None`` if Paddle's executor runs them.
        feed: The feed of measured runs.
        scope: The scope of the variables.
    """

    name: str
    program: PirProgram
    fetches: list[Value]
    schedule: Schedule | None
    feed: Mapping[str, np.ndarray]
    scope: Scope

    def tasks(self, ms: Sequence[float]) -> dict[int, Task]:
        """The subgraphs as tasks of the simulation; subgraph ``i`` takes ``ms[i]`` milliseconds."""
        assert self.schedule is not None
        return {
            index: Task(each, sorted(step.after), step.groups)
            for index, (step, each) in enumerate(zip(self.schedule.steps, ms))
        }

    def computed(self) -> Computed:
        """Runs the plan once on copies of the variables; returns fetched values and variables."""
        scope = copies_of(self.program, self.scope)
        fetched = executor_run(self, scope)()
        variables_after = variables_of(self.program, scope)
        variables = {name: np.array(each.get_tensor()) for name, each in variables_after.items()}
        return Computed(list(map(np.asarray, fetched)), variables)


@dataclass(frozen=True)
class Option:
    """Evaluation of a candidate plan.

    Attributes:
        name: ``serial``, ``N slices``, ``N core groups`` or ``pipeline of N stages, M slices``.
        predicted_ms: The predicted time of a run in milliseconds; ``None`` for a rejected plan, and
            for a plan without a schedule: of a single subgraph, or run by Paddle's executor.
        measured_ms: The measured time of a run; ``None`` if the prediction was too slow.
        reason: The reason for a rejection; empty if the plan was not rejected.
    """

    name: str
    predicted_ms: float | None = None
    measured_ms: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class AutomaticPlan:
    """See :func:`paddle_ngraph.automatic_plan`.

    Attributes:
        program: The program for ``Executor.run``, with the engine switched on or off.
        fetches: Variables of the planned program that correspond to those in the ``fetch_list``.
        chosen: The name of the chosen plan.
        options: All candidate plans.
    """

    program: PirProgram
    fetches: list[Value]
    chosen: str
    options: Sequence[Option]

    def __str__(self) -> str:
        return "\n".join(
            [f"{self.chosen}: the fastest when measured.", *map(_sentence, self.options)]
        )


def _sentence(option: Option) -> str:
    if option.reason:
        return f"{option.name}: excluded: {option.reason}"
    predicted = "" if option.predicted_ms is None else f"predicted {option.predicted_ms:.3g} ms, "
    if option.measured_ms is None:
        measured = "which is too far from the best to be measured"
    else:
        measured = f"measured {option.measured_ms:.3g} ms"
    return f"{option.name}: {predicted}{measured}"


def automatic_plan(
    program: Any,
    feed: Mapping[str, Any],
    wanted: Sequence[Any],
    scope: Any,
    stopwatch: Stopwatch | None = None,
) -> AutomaticPlan:
    """Selects the fastest plan; see :func:`paddle_ngraph.automatic_plan`."""
    stopwatch = stopwatch or _Measured()
    arrays = {name: np.asarray(value) for name, value in feed.items()}
    random = paddle.get_rng_state("cpu")
    try:
        # Without a background build: otherwise times would be those of fallback runs.
        with background_compile.compile_synchronously():
            return _PlanSelection(program, arrays, wanted, scope, stopwatch, random).select()
    finally:
        set_random_states(random)


class _PlanSelection:
    """The selection of the fastest plan for one program."""

    def __init__(
        self,
        program: Any,
        feed: Mapping[str, np.ndarray],
        wanted: Sequence[Any],
        scope: Scope,
        stopwatch: Stopwatch,
        random: Any,
    ) -> None:
        self._program = program
        self._feed = feed
        self._wanted = wanted
        self._scope = scope
        self._stopwatch = stopwatch
        self._random = random
        self._plans: dict[str, CandidatePlan] = {}
        self._skipped: dict[str, str] = {}

    def select(self) -> AutomaticPlan:
        """Builds candidate plans, checks and times them; returns the fastest."""
        plan = ExecutionPlan(self._program, None, self._wanted)
        serial = self._candidate(SERIAL, plan.program, plan.fetches)
        expected = self._computed(serial)
        gradients = _gradients(self._program, self._wanted)
        for name, build in self._candidates():
            self._try(name, build, expected, gradients)
        predicted = {name: self._predicted(candidate) for name, candidate in self._plans.items()}
        measured = {SERIAL: self._stopwatch.run(serial)}
        best = min(measured[SERIAL], *(ms for ms in predicted.values() if ms is not None), math.inf)
        self._plans = {SERIAL: serial, **self._plans}
        for name, ms in predicted.items():
            if ms is None or ms <= best * _MAX_TIME_RATIO_TO_MEASURE:
                measured[name] = self._stopwatch.run(self._plans[name])
        chosen = min(measured, key=measured.__getitem__)
        options = [Option(name, predicted.get(name), measured.get(name)) for name in self._plans]
        options += [Option(name, reason=reason) for name, reason in self._skipped.items()]
        candidate = self._plans[chosen]
        return AutomaticPlan(candidate.program, candidate.fetches, chosen, options)

    def _candidates(self) -> Iterator[tuple[str, _Build]]:
        """Yields (name, function that builds the program) of candidate plans but the serial one."""
        cores = devices.usable_cores()
        for count in range(2, min(len(cores), _MAX_CORE_GROUPS) + 1):
            if len(cores) % count == 0:
                yield f"{count} slices", partial(self._slices, count)
                yield f"{count} core groups", partial(self._groups, count)
                for slices in _PIPELINE_SLICES:
                    # A pipeline with fewer slices than stages is not tried: some stage would always
                    # be idle.
                    if slices >= count:
                        name = f"pipeline of {count} stages, {slices} slices"
                        yield name, partial(self._pipeline, name, count, slices)

    def _slices(self, count: int) -> _Planned:
        self._check_divisible(count)
        planned = data_parallel(self._program, count, self._wanted)
        return planned.program, planned.fetches

    def _check_divisible(self, count: int) -> None:
        if all(value.ndim == 0 or value.shape[0] % count for value in self._feed.values()):
            raise NgraphError(f"the batch is not divisible into {count} slices")

    def _pipeline(self, name: str, count: int, slices: int) -> _Planned:
        """Builds a pipeline of ``count`` stages that are balanced by measured times."""
        self._check_divisible(slices)
        groups = _core_groups(count)
        planned = pipeline(self._program, slices, groups, self._wanted)
        candidate = self._candidate(name, planned.program, planned.fetches)
        measured = self._ms_of(candidate, groups)
        if max(measured, default=0.0) > _MAX_TIME_RATIO_TO_MEASURE * sum(measured) / count:
            planned = pipeline(self._program, slices, groups, self._wanted, measured)
        return planned.program, planned.fetches

    def _ms_of(self, candidate: CandidatePlan, groups: Sequence[str]) -> list[float]:
        """Milliseconds of computation of each core group; empty for a plan without a schedule."""
        if candidate.schedule is None:
            return []
        found = dict.fromkeys((frozenset(cores_of(group)) for group in groups), 0.0)
        for step, ms in zip(candidate.schedule.steps, self._stopwatch.steps(candidate).concurrent):
            if step.groups[0] in found:
                found[step.groups[0]] += ms
        return list(found.values())

    def _groups(self, count: int) -> _Planned:
        plan = ExecutionPlan(self._program, _core_groups(count), self._wanted)
        if len({op.device for op in plan.operators}) < count:
            raise NgraphError(f"the program has no {count} independent branches")
        return plan.program, plan.fetches

    def _try(
        self,
        name: str,
        build: _Build,
        expected: Computed,
        gradients: Mapping[str, float],
    ) -> None:
        """Adds a candidate plan if its results are equivalent to those of the serial plan."""
        with signals.recognized_signals():
            try:
                candidate = self._candidate(name, *build())
                computed = self._computed(candidate)
            except Exception as error:
                signals.raise_if_from_outside(error)
                # Rejects the plan for any error: Paddle's errors have many classes, and the serial
                # plan has run.
                lines = str(error).strip().splitlines() or [type(error).__name__]
                self._skipped[name] = lines[-1].strip()
                return
        if _is_equivalent(computed, expected, gradients):
            self._plans[name] = candidate
        else:
            self._skipped[name] = "its results differ from those of the serial plan"

    def _candidate(self, name: str, program: PirProgram, fetches: list[Value]) -> CandidatePlan:
        schedule = schedule_of(program)
        return CandidatePlan(name, program, fetches, schedule, self._feed, self._scope)

    def _computed(self, candidate: CandidatePlan) -> Computed:
        set_random_states(self._random)
        return candidate.computed()

    def _predicted(self, candidate: CandidatePlan) -> float | None:
        """The predicted milliseconds of a run; ``None`` for a plan without a schedule."""
        if candidate.schedule is None:
            return None
        steps = self._stopwatch.steps(candidate)
        # The time of running the steps one after another counts if it is shorter: the engine then
        # uses one thread for all of them.
        return min(sum(steps.alone), total_ms(candidate.tasks(steps.concurrent))) + steps.besides


def _core_groups(count: int) -> list[str]:
    """The device names of ``count`` groups, of equal size, of all cores."""
    cores = devices.usable_cores()
    size = len(cores) // count
    return [core_group(cores[size * i : size * (i + 1)]) for i in range(count)]


def _gradients(program: Any, wanted: Sequence[Any]) -> dict[str, float]:
    """Comparison rules for variables of optimizers that divide by the magnitude of the gradient.

    Returns:
        By variable name, the power that is linear in the gradient; 0 for variables that are not
        compared, since the gradient determines their updates.
    """
    given = ngraph_transpiler.static_program(program, "automatic_plan")
    copy, _ = ngraph_transpiler.copied(given, wanted)
    view = BlockView(copy.global_block())
    found: dict[str, float] = {}
    for node in view.nodes:
        if node.type in _NORMALIZING_OPTIMIZERS:
            operand, power = _NORMALIZING_OPTIMIZERS[node.type]
            shown = dict(zip(node.op.get_input_names(), node.op.operands_source()))[operand]
            for vid, _ in node.overwrites:
                producer = view.producer[view.root(vid)]
                found[scope_name(producer.op)] = power if vid == view.known(shown) else 0.0
    return found


def _is_equivalent(found: Computed, expected: Computed, gradients: Mapping[str, float]) -> bool:
    """Whether a run of a plan has computed the results that the serial plan computes.

    ``gradients``: see :func:`_gradients`.
    """
    if len(found.fetched) != len(expected.fetched):
        return False
    if found.variables.keys() != expected.variables.keys():
        return False
    powers = {name: gradients.get(name, 1.0) for name in expected.variables}
    shown = [_root(expected.variables[name], powers[name]) for name in gradients if powers[name]]
    rounding = _ROUNDING * max(map(_largest, shown), default=0.0)
    return all(map(_is_close, found.fetched, expected.fetched)) and all(
        _is_near(
            _root(found.variables[name], power),
            _root(expected.variables[name], power),
            rounding if name in gradients else 0.0,
        )
        for name, power in powers.items()
        if power
    )


def _root(array: np.ndarray, power: float) -> np.ndarray:
    return array if power == 1.0 else np.abs(array) ** power


def _is_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are equal up to rounding, element by element."""
    return one.shape == other.shape and np.allclose(
        one, other, _TOLERANCE, _TOLERANCE * _largest(other), equal_nan=True
    )


def _is_near(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    """Whether an array is as expected, by the norm of the difference.

    Where the input of a ReLU or maximum is tied except for rounding, single elements of a gradient
    differ.
    """
    finite = np.isfinite(other)
    if one.shape != other.shape or not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    allowed = _VARIABLE_TOLERANCE * np.linalg.norm(other[finite]) + rounding * math.sqrt(other.size)
    return bool(np.linalg.norm(one[finite].astype("float64") - other[finite]) <= allowed)


def _largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


# -- measuring -----------------------------------------------------------------------------------


def executor_run(candidate: CandidatePlan, scope: Scope) -> Callable[[], list[Any]]:
    """Returns a function that runs a planned program on the variables of a scope."""
    executor: Any = paddle.static.Executor(paddle.CPUPlace())
    feed = dict(candidate.feed)
    return lambda: executor.run(
        candidate.program, feed=feed, fetch_list=candidate.fetches, scope=scope
    )


class _Measured:
    """Stopwatch that measures real runs; tests use another one."""

    def steps(self, candidate: CandidatePlan) -> SubgraphTimes:
        run = executor_run(candidate, copies_of(candidate.program, candidate.scope))
        concurrent, _ = self._timed(candidate, run, is_alone=False)
        alone, besides = self._timed(candidate, run, is_alone=True)
        return SubgraphTimes(alone, concurrent, besides)

    def _timed(
        self, candidate: CandidatePlan, run: Callable[[], object], is_alone: bool
    ) -> tuple[list[float], float]:
        """The median milliseconds of each subgraph, and of the remaining time of a run."""
        assert candidate.schedule is not None
        step_times: list[list[float]] = []
        overheads: list[float] = []
        with timing(is_alone) as times:
            for ms in _runs(run):
                step_times.append([times[index] for index in range(len(candidate.schedule.steps))])
                overheads.append(ms - sum(step_times[-1]))
        return [statistics.median(each) for each in zip(*step_times)], statistics.median(overheads)

    def run(self, candidate: CandidatePlan) -> float:
        return statistics.median(
            _runs(executor_run(candidate, copies_of(candidate.program, candidate.scope)))
        )


def _runs(run: Callable[[], object]) -> Iterator[float]:
    """Yields the duration of each run in milliseconds, after two runs that are not timed."""
    for _ in range(2):
        run()
    count, end = 0, clock.now() + _MIN_SECONDS
    while count < _MIN_RUNS or clock.now() < end:
        start = clock.now()
        run()
        count += 1
        yield (clock.now() - start) * 1e3
