"""The executor hook: the link between Paddle's Executor and the program pass.

Paddle runs each static program, PIR or ProgramDesc, by a ``StandaloneExecutor`` over a plan. The
hook replaces it by a switch that retains the plan and uses at each run, depending on the flag,
Paddle's executor or an executor of a rewritten copy of the plan. Both work on one scope, so the
flag may change between any two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import paddle

from paddle_ngraph import _core, flags
from paddle_ngraph.conversion import denylist
from paddle_ngraph.frontends import ngraph_transpiler
from paddle_ngraph.frontends.executor import (
    call_cache,
    program_key,
    scope_tracking,
    weight_writes,
    whole_program,
)
from paddle_ngraph.frontends.program_desc import single_assignment, translation
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    DenseTensor,
    PaddlePlan,
    StandaloneExecutor,
    clear_tensor,
    copy_of,
    exchange_native,
    is_initialized,
    native_of,
    place_of,
    plan_of,
    scope_of,
    tensor_of_array,
    values_of,
)
from paddle_ngraph.paddle_private.protocols import (
    Executor,
    LegacyProgramDesc,
    Plan,
    Program,
    Scope,
    Tensor,
    Variable,
)
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import (
    has_bfloat16,
    has_engines,
    is_packed,
    is_sequential,
    may_write_variables,
    must_run_sequentially,
    nodes_of,
)
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.plan import data_dependency_engine, data_parallel
from paddle_ngraph.plan.data_dependency_engine import PlannedProgram
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock
from paddle_ngraph.utils.thread_local import ThreadLocal

# The number of runs after which a program that is too small for the cost model is compiled: each
# run gains about 0.4 ms, and compilation takes 10 to 30 ms.
_SMALL_RUNS_BEFORE_REPLAN = 64

# Paddle's executor accepts PIR programs.
_PIR_IN_EXECUTOR = _core.FlagOverride("enable_pir_in_executor")
# Paddle's executor obeys the user's flag, also while other threads run PIR programs.
_PIR_IN_EXECUTOR_AS_SET = _core.FlagOverride("enable_pir_in_executor", user_value=True)
# Paddle's executor runs operators one by one, in program order.
_SEQUENTIAL_RUN = _core.FlagOverride("new_executor_sequential_run")
# Paddle's executor runs operators in the calling thread: waking another thread takes longer than
# most operators.
_TRACE_RUN = _core.FlagOverride("enable_pir_in_executor_trace_run")

_prepare_lock = new_lock()
_flag_at_feed: ThreadLocal[bool | None] = ThreadLocal(None)  # at the time this thread fed its run
T = TypeVar("T")


def install() -> None:
    """Installs the hook; a second call changes nothing."""
    weight_writes.install()
    scope_tracking.install()
    program_key.install()
    call_cache.install()
    replaced.CREATE_EXECUTOR.replace(_creating_switch)
    replaced.RUN_EXECUTOR.replace(_with_switch)
    replaced.FEED_LEGACY.replace(
        lambda original: _reading_flag_at_feed(_feeding_either_format(original))
    )
    replaced.FEED_PIR.replace(_reading_flag_at_feed)
    replaced.CREATE_PLAN.replace(_with_flag_as_set)
    replaced.ADD_FETCHES.replace(_serialized)
    replaced.ADD_FETCH.replace(_serialized)


def _reading_flag_at_feed(original: Callable[..., None]) -> Callable[..., None]:
    """Reads the flag when a program is fed, since its run follows."""

    @wraps(original)
    def feed_data(self: Any, program: Any, *args: Any) -> None:
        call_cache.prepared(program)
        _flag_at_feed.value = flags.get("use_ngraph")
        original(self, program, *args)

    return feed_data


def _take_flag() -> bool:
    """The flag at the time this thread fed its run; another thread may have changed it since."""
    is_on, _flag_at_feed.value = _flag_at_feed.value, None
    return bool(flags.get("use_ngraph") if is_on is None else is_on)


def _with_flag_as_set(original: Callable[..., T]) -> Callable[..., T]:
    """Applies the user's PIR flag, on which Paddle's plan of a ProgramDesc program depends."""

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> T:
        with _PIR_IN_EXECUTOR_AS_SET:
            return original(*args, **kwargs)

    return make


def _serialized(original: Callable[..., None]) -> Callable[..., None]:
    """Serializes the preparation of programs: Paddle's insertion point for operators is global.

    No program runs under the lock, so its holder never waits for another thread.
    """

    @wraps(original)
    def add(*args: Any, **kwargs: Any) -> None:
        with _prepare_lock:
            original(*args, **kwargs)

    return add


def _feeding_either_format(original: Callable[..., None]) -> Callable[..., None]:
    """Feeds both program formats: a ProgramDesc program reads feeds from a list, a PIR one by name.

    The switch may translate a ProgramDesc program to PIR, so it needs both.
    """

    @wraps(original)
    def feed_data(
        self: Any, program: Any, feed: dict[str, Any], feed_var_name: str, scope: Scope
    ) -> None:
        if _flag_at_feed.value and self.place.is_cpu_place():
            feed = {name: _as_tensor(value, self.place) for name, value in feed.items()}
            with _PIR_IN_EXECUTOR:
                original(self, program, feed, feed_var_name, scope)
        with _PIR_IN_EXECUTOR_AS_SET:
            original(self, program, feed, feed_var_name, scope)

    return feed_data


def _as_tensor(value: Any, place: Any) -> Any:
    return tensor_of_array(value, place) if isinstance(value, np.ndarray) else value


def _creating_switch(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Creates executors of Paddle's that run a switch in place of the interpreter."""

    @wraps(original)
    def create_new_executor(self: Any) -> Any:
        if not place_of(self).is_cpu_place():
            return original(self)
        return SwitchedExecutor(place_of(self), plan_of(self), scope_of(self))

    return create_new_executor


def _with_switch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` of an executor; an executor that was created before the hook gets its switch here."""

    @wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        place, executor = place_of(self), native_of(self)
        if not place.is_cpu_place():
            return original(self, *args, **kwargs)
        if not isinstance(executor, SwitchedExecutor):
            executor = SwitchedExecutor(place, plan_of(self), scope_of(self), executor)
            exchange_native(self, executor)
        results = original(self, *args, **kwargs)
        return _with_own_memory(results) if executor.is_legacy else results

    return run


def _with_own_memory(results: list[Any]) -> list[Any]:
    """Copies of results that later runs must not write to.

    Those of ProgramDesc programs have their own memory in Paddle, those of PIR programs do not.
    """
    if not flags.get("use_ngraph"):
        return results
    return [_copy(each) if isinstance(each, DenseTensor) else each for each in results]


def _copy(tensor: Tensor) -> Tensor:
    if not is_initialized(tensor) or 0 in tensor.shape():
        return tensor  # no data to overwrite
    copy = copy_of(tensor, paddle.CPUPlace())
    if lod := tensor.lod():
        copy.set_lod(lod)
    return copy


class SwitchedExecutor:
    """Runs a plan by Paddle or through the engine, depending on ``FLAGS_use_ngraph`` at each run.

    Programs that contain engine operators already run unmodified when the flag is off.

    Args:
        place: The device of the plan: a CPU.
        plan: Paddle's plan.
        scope: The variables, shared by both paths of execution.
        executor: Paddle's executor of the plan, if it exists already.

    Attributes:
        is_legacy: Whether the plan consists of ProgramDesc programs.
    """

    def __init__(
        self, place: Any, plan: Plan, scope: Scope, executor: Executor | None = None
    ) -> None:
        self._place = place
        self._plan = plan
        self._scope = scope
        self.is_legacy = any(t not in plan.job_types() for t in _job_types(plan))
        self._is_unused = executor is None  # no run yet
        self._paddle_executor = scope_tracking.Bound(
            scope, self._names, self._create_paddle_executor, executor
        )
        self._engine: _EngineExecutor | None = None
        self._transpiled: _EngineExecutor | None = None
        self._is_transpiled = any(map(has_engines, map(plan.ir_program, plan.job_types())))
        self._plan_lock = new_lock()
        self._is_rewritten = False
        self._dynamic_axes: list[tuple[str, int]] = []
        self._planned_size = 0  # for which the engine's programs were rewritten; 0: any
        self._small_runs = 0  # of programs that are too small for the cost model
        self._may_write: bool | None = None  # not yet known
        self._persistable: frozenset[str] | None = None  # of a ProgramDesc plan; not yet known
        # A function of py_func may run a program, during which this run must not override the flag.
        self._paddle_flag = nullcontext() if _runs_python(plan) else _PIR_IN_EXECUTOR_AS_SET
        self._sequential_run = _SequentialPaddleRun() if _is_sequential(plan) else nullcontext()

    def run(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool = False) -> Any:
        """Runs the plan once; the arguments are those of ``StandaloneExecutor.run``."""
        try:
            with weight_writes.run_of(self._may_write_variables()):
                return self._run(feed_names, enable_job_schedule_profiler)
        finally:
            if self.is_legacy:
                self._clear_feeds(feed_names)
            call_cache.ran(self)

    @property
    def is_repeatable(self) -> bool:
        """Whether :meth:`repeat` may repeat the last run."""
        engine = self._engine_of_last_run
        return engine is not None and engine.fast_path is not None

    @property
    def _engine_of_last_run(self) -> _EngineExecutor | None:
        """The executor of the last run, if it will surely run others on feeds of equal names."""
        if not flags.get("use_ngraph"):
            return self._transpiled
        # The execution of a program with small subgraphs depends on the sizes of the feeds.
        return self._engine if self._is_rewritten and self._planned_size == 0 else None

    def repeat(self, feed: dict[str, Any], prepare: Callable[[], None]) -> list[np.ndarray] | None:
        """Repeats the last run, on other feeds.

        Args:
            feed: By name, as for ``Executor.run``.
            prepare: Called before the run.

        Returns:
            The fetched results. ``None`` if no run was possible, so that :meth:`run` is needed.
        """
        engine = self._engine_of_last_run
        fast_path = None if engine is None else engine.fast_path
        if (
            engine is None
            or fast_path is None
            or _core.observes_operators()
            or engine.has_new_denials()
        ):
            return None
        prepare()
        engine.check_divisible(lambda name: _shape_of_array(feed.get(name)))
        return fast_path.run_on(feed)

    def _run(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool) -> Any:
        engine = self._engine_executor(feed_names) if _take_flag() else None
        engine = engine or self._transpiled_executor()
        if engine is None:
            return self._run_by_paddle(feed_names, enable_job_schedule_profiler)
        self._is_unused = False
        return engine.run(feed_names, enable_job_schedule_profiler)

    def run_profile(self, feed_names: Sequence[str]) -> Any:
        """Paddle's profiling run: always by Paddle."""
        with self._paddle_flag:
            return self._paddle_executor.get().run_profile(feed_names)

    def _may_write_variables(self, programs: dict[str, Program] | None = None) -> bool:
        """Whether a run may write to variables; ``programs``: those of the plan, if known."""
        if self._may_write is None:
            programs = _pir_programs(self._plan) if programs is None else programs
            self._may_write = not programs or any(map(may_write_variables, programs.values()))
        return self._may_write

    def _run_by_paddle(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool) -> Any:
        with self._paddle_flag, self._sequential_run:
            found = self._paddle_executor.get().run(feed_names, enable_job_schedule_profiler)
        return found if self._paddle_flag is _PIR_IN_EXECUTOR_AS_SET else self._fetched(found)

    def _fetched(self, found: Any) -> Any:
        """The results of a run by Paddle during which the flag may have changed.

        If another thread had switched the flag on by the end, Paddle looks for the results of a PIR
        program. Those of this run are in the scope.
        """
        values = values_of(found)
        if not values and self._fetches():
            values = values_of(self._variable(translation.FETCHED).get_fetch_list())
        return whole_program.Fetched(values)

    def _fetches(self) -> bool:
        blocks = (program.block(0) for program in _legacy_programs(self._plan))
        operators = (op for block in blocks for op in single_assignment.operators(block))
        return any(op.type() in ("fetch", "fetch_v2") for op in operators)

    def _create_paddle_executor(self, binding: scope_tracking.Binding) -> Executor:
        """Paddle's executor of the plan; later ones do not recreate the variables."""
        plan = (
            _plan_for_paddle(self._plan)
            if self._is_unused
            else _with_existing_variables(self._plan)
        )
        self._is_unused = False
        binding.report_erased(map(plan.ir_program, plan.job_types()))
        # No program runs here, so the flag can be overridden, even where a run must not do so.
        with (
            nullcontext()
            if self._paddle_flag is _PIR_IN_EXECUTOR_AS_SET
            else _PIR_IN_EXECUTOR_AS_SET
        ):
            return StandaloneExecutor(self._place, plan, self._scope)

    def _names(self) -> frozenset[str]:
        return scope_tracking.names_in(_programs(self._plan).values())

    def _engine_executor(self, feed_names: Sequence[str]) -> _EngineExecutor | None:
        """The executor of the rewritten programs; ``None`` when no operator can be converted."""
        fed = self._feed_shapes(feed_names)
        if self.is_legacy and any(self._tensor(name).lod() for name in fed):
            return None
        if any(0 in shape for shape in fed.values()):
            # nGraph functions have no empty dimensions; Paddle's kernels have rules for them.
            return None
        if not self._is_rewritten or self._has_outgrown(fed) or self._has_new_denials():
            with self._plan_lock:
                if not self._is_rewritten or self._has_outgrown(fed) or self._has_new_denials():
                    self._rewrite_for(fed)
        elif self._planned_size > 0:
            self._small_runs += 1
            if self._small_runs == _SMALL_RUNS_BEFORE_REPLAN:
                self._rewrite_whole_program()
        if self.is_legacy and self._engine is not None and self._engine.has_missing_variable():
            return None  # Paddle reports it
        return self._engine

    def _transpiled_executor(self) -> _EngineExecutor | None:
        """The executor of unmodified programs that contain engine operators, if there are any."""
        if self._is_transpiled and self._transpiled is None:
            with self._plan_lock:
                if self._transpiled is None:
                    programs = _pir_programs(self._plan)
                    nodes = (node for each in programs.values() for node in nodes_of(each))
                    self._transpiled = self._create_engine_executor(
                        programs, sum(n.draws for n in nodes)
                    )
        return self._transpiled

    def _rewrite_for(self, fed: dict[str, list[int]]) -> None:
        """Applies the program pass for feeds of these shapes."""
        programs = _pir_programs(self._plan)
        self._dynamic_axes = cost_model.dynamic_axes(programs.values())
        size = self._largest_dynamic_size(fed)
        reports = self._rewrite(programs, size)
        engine = None
        if any(report.changes or report.engines for report in reports):
            engine = self._create_engine_executor(
                programs, sum(report.drawing for report in reports)
            )
        self._engine = engine
        is_small = any(report.has_small_interval for report in reports)
        self._planned_size = size if is_small else 0
        self._is_rewritten = True

    def _rewrite_whole_program(self) -> None:
        """Rewrites without the cost model, and uses the result if it is one engine operator."""
        programs = _pir_programs(self._plan)
        if not ngraph_transpiler.could_be_single_engine(programs.values()):
            return
        reports = self._rewrite(programs, None)
        engine = self._create_engine_executor(programs, sum(report.drawing for report in reports))
        if engine.whole is not None:
            self._engine, self._planned_size = engine, 0

    def _rewrite(self, programs: dict[str, Program], planned_size: int | None) -> list[Report]:
        """Applies the program pass to the programs of the plan."""
        may_write = self._may_write_variables(programs)
        rewrite = ngraph_transpiler.rewrite
        return [rewrite(each, may_write, planned_size, tries=False) for each in programs.values()]

    def _create_engine_executor(
        self, programs: dict[str, Program], drawing: int
    ) -> _EngineExecutor:
        return _EngineExecutor(self._place, self._plan, self._scope, programs, drawing)

    def _has_new_denials(self) -> bool:
        """Whether a run has denylisted a subgraph that was planned for the engine."""
        return self._engine is not None and self._engine.has_new_denials()

    def _has_outgrown(self, fed: dict[str, list[int]]) -> bool:
        """Whether feeds have grown so much that small subgraphs may now be worth the engine."""
        if self._planned_size == 0:
            return False
        return (
            self._largest_dynamic_size(fed) >= cost_model.REPLAN_GROWTH_FACTOR * self._planned_size
        )

    def _largest_dynamic_size(self, fed: dict[str, list[int]]) -> int:
        """The largest fed size of a dimension that the program declares as dynamic."""
        sizes = (
            fed[name][axis] for name, axis in self._dynamic_axes if axis < len(fed.get(name, ()))
        )
        return max(sizes, default=cost_model.TYPICAL_SIZE)

    def _tensor(self, name: str) -> Tensor:
        return self._variable(name).get_tensor()

    def _variable(self, name: str) -> Variable:
        found = self._scope.find_var(name)
        assert found is not None  # it was fed, or Paddle has just written it
        return found

    def _clear_feeds(self, names: Sequence[str]) -> None:
        """Clears the variables of feeds: ProgramDesc programs must not find them in later runs.

        Persistable variables, such as a parameter that is fed, retain their contents.
        """
        if self._persistable is None:
            self._persistable = _persistable_in(_legacy_programs(self._plan))
        for name in names:
            if name in self._persistable:
                continue
            if (variable := self._scope.find_var(name)) is not None:
                clear_tensor(variable.get_tensor())

    def _feed_shapes(self, names: Sequence[str]) -> dict[str, list[int]]:
        variables = ((name, self._scope.find_var(name)) for name in names)
        found = {name: variable for name, variable in variables if variable is not None}
        return {name: weight_writes.tensor_of(each).shape() for name, each in found.items()}


class _EngineExecutor:
    """Runs rewritten PIR programs, also those that were translated from ProgramDesc.

    This uses ``StandaloneExecutor``, unless one engine operator is the whole program, or the
    program consists of engine operators on several devices only.

    Args:
        place, plan, scope: As in :class:`SwitchedExecutor`.
        programs: The rewritten programs by job type.
        num_stochastic: The number of their engine operators that sample random numbers.
    """

    def __init__(
        self,
        place: Any,
        plan: Plan,
        scope: Scope,
        programs: dict[str, Program],
        num_stochastic: int,
    ) -> None:
        nodes = [node for program in programs.values() for node in nodes_of(program)]
        graphs = [node.graph for node in nodes if node.is_engine]
        self._engines = [_core.NgraphEngine(graph) for graph in graphs]  # kept alive
        self._denials = denylist.DenialWatcher(graphs)
        has_order = _is_sequential(plan)
        in_order = has_order or must_run_sequentially(nodes, num_stochastic)
        self._sequential_run = _SEQUENTIAL_RUN if in_order else nullcontext()
        # Paddle runs operators in parallel threads, the engine runs each operator on several
        # threads.
        runs_all = all(is_packed(node.type) for node in nodes if node.is_compute)
        self._trace_run = _TRACE_RUN if runs_all or has_order else nullcontext()
        self._place, self._plan, self._scope = place, plan, scope
        self._programs = programs
        # A ProgramDesc program raises where a variable is missing.
        legacy = [
            each for job_type, each in self._programs.items() if job_type not in plan.job_types()
        ]
        self._unfed = [name for program in legacy for name in _unfed(program)]
        self._interpreted = scope_tracking.Bound(scope, self._names, self._create_interpreted)
        self._whole = scope_tracking.Bound(scope, self._names, self._find_whole)
        self._schedule = None if has_order else self._find_schedule()
        self._device_schedule = scope_tracking.Bound(scope, self._names, self._find_device_schedule)
        partitioned = [p for p in programs.values() if sum(n.is_engine for n in nodes_of(p)) > 1]
        self._slices = [data_parallel.feeds_in_slices(program) for program in partitioned]

    @property
    def whole(self) -> whole_program.WholeProgram | None:
        """The programs as one engine operator, if they consist of no other operators."""
        return self._whole.get()

    @property
    def fast_path(self) -> whole_program.WholeProgram | PlannedProgram | None:
        """The programs without Paddle's interpreter, if that is possible."""
        return self.whole or self._device_schedule.get()

    def run(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool) -> Any:
        self.check_divisible(self._shape_of)
        if not enable_job_schedule_profiler and not _core.observes_operators():
            fast_path = self.fast_path
            if fast_path is not None:
                return whole_program.Fetched(fast_path.run())
        with (
            signals.deferred_signals(except_ctrl_c=True),
            _PIR_IN_EXECUTOR,
            self._sequential_run,
            self._trace_run,
        ):
            executor = self._interpreted.get()
            return executor.run(list(feed_names), enable_job_schedule_profiler)

    def check_divisible(self, shape_of: Callable[[str], Sequence[int]]) -> None:
        """Raises an error for a batch that does not divide into slices.

        Paddle would reject such a batch too, in the middle of the run and with a message of its
        own.

        Args:
            shape_of: Returns the shape of the feed of a name; empty if unknown.
        """
        for count, names in self._slices:
            for name in names:
                if shape := shape_of(name):
                    data_parallel.check_divisible(name, shape[0], count, "slices")

    def _shape_of(self, name: str) -> Sequence[int]:
        variable = self._scope.find_var(name)
        return () if variable is None else tuple(weight_writes.tensor_of(variable).shape())

    def has_missing_variable(self) -> bool:
        """Whether a variable that a ProgramDesc program reads from the scope has no data."""
        variables = map(self._scope.find_var, self._unfed)
        return any(
            found is None or not is_initialized(weight_writes.tensor_of(found))
            for found in variables
        )

    def _create_interpreted(self, binding: scope_tracking.Binding) -> Executor:
        plan = PaddlePlan(self._plan.job_list(), self._programs)
        binding.report_erased(self._programs.values())
        return StandaloneExecutor(self._place, plan, self._scope)

    def _find_whole(self, _: scope_tracking.Binding) -> whole_program.WholeProgram | None:
        if len(self._plan.job_list()) != 1 or len(self._programs) != 1:
            return None
        (program,) = self._programs.values()
        return whole_program.find(program, self._scope)

    def _find_schedule(self) -> data_dependency_engine.Schedule | None:
        if len(self._plan.job_list()) != 1 or len(self._programs) != 1:
            return None
        (program,) = self._programs.values()
        return data_dependency_engine.schedule_of(program)

    def _find_device_schedule(self, _: scope_tracking.Binding) -> PlannedProgram | None:
        schedule = self._schedule
        if schedule is None or any(map(self._is_missing, schedule.sources.values())):
            return None
        return PlannedProgram(schedule, self._scope)

    def _is_missing(self, name: str) -> bool:
        return self._scope.find_var(name) is None

    def _names(self) -> frozenset[str]:
        return scope_tracking.names_in(self._programs.values())

    def has_new_denials(self) -> bool:
        """Whether a run has denylisted one of the graphs."""
        return self._denials.has_new_denials()


def _shape_of_array(feed: Any) -> Sequence[int]:
    return feed.shape if isinstance(feed, np.ndarray) else ()


class _SequentialPaddleRun:
    """A run by Paddle of a program whose operators run one by one, in program order.

    The operators run in the calling thread: memory that one thread frees is slow to reach another.
    """

    def __enter__(self) -> None:
        _SEQUENTIAL_RUN.__enter__()
        _TRACE_RUN.__enter__()

    def __exit__(self, *error: object) -> None:
        _TRACE_RUN.__exit__(*error)
        _SEQUENTIAL_RUN.__exit__(*error)


def _is_sequential(plan: Plan) -> bool:
    """Whether the operators of a plan run one by one, in program order."""
    return any(map(is_sequential, map(plan.ir_program, plan.job_types())))


def _unfed(program: Program) -> list[str]:
    """The variables that a program reads from the scope and that are not persistable."""
    sources = [op for op in program.global_block().ops if op.name() == "pd_op.data"]
    return [op.attrs()["name"] for op in sources if not any(op.attrs().get("persistable", ()))]


def _pir_programs(plan: Plan) -> dict[str, Program]:
    """Copies of the plan's programs by job type; none if Paddle cannot translate one to PIR."""
    programs = {job_type: _pir_program(plan, job_type) for job_type in _job_types(plan)}
    found = {job_type: each for job_type, each in programs.items() if each is not None}
    return found if len(found) == len(programs) else {}


def _programs(plan: Plan) -> dict[str, Program | LegacyProgramDesc]:
    """The plan's programs by job type, PIR or ProgramDesc."""
    is_pir = plan.job_types()
    return {t: plan.ir_program(t) if t in is_pir else plan.program(t) for t in _job_types(plan)}


def _plan_for_paddle(plan: Plan) -> Plan:
    """The plan for Paddle's executor, with copies of bfloat16 programs.

    Paddle's executor inserts oneDNN operators into programs with bfloat16.
    """
    programs = {t: plan.ir_program(t) for t in plan.job_types()}
    if not any(map(has_bfloat16, programs.values())):
        return plan
    return PaddlePlan(plan.job_list(), {t: each.clone() for t, each in programs.items()})


def _with_existing_variables(plan: Plan) -> Plan:
    """The plan, with programs that write to the existing variables of the scope."""
    if not plan.job_types():
        return plan  # ProgramDesc programs do so already
    return PaddlePlan(plan.job_list(), {t: _pir_program(plan, t) for t in plan.job_types()})


def _runs_python(plan: Plan) -> bool:
    """Whether a ProgramDesc program of the plan calls Python."""
    return any(map(translation.calls_python, _legacy_programs(plan)))


def _legacy_programs(plan: Plan) -> list[LegacyProgramDesc]:
    """The ProgramDesc programs of the plan."""
    return [plan.program(t) for t in _job_types(plan) if t not in plan.job_types()]


def _persistable_in(programs: Iterable[LegacyProgramDesc]) -> frozenset[str]:
    """The persistable variables of ProgramDesc programs."""
    variables = (v for program in programs for v in program.block(0).all_vars())
    return frozenset(variable.name() for variable in variables if variable.persistable())


def _job_types(plan: Plan) -> set[str]:
    return {job.type() for job in plan.job_list()}


def _pir_program(plan: Plan, job_type: str) -> Program | None:
    """A copy of a program of the plan; a ProgramDesc program is translated, ``None`` if impossible.

    The copy writes to existing variables of the scope instead of recreating them.
    """
    is_pir = job_type in plan.job_types()
    program = (
        plan.ir_program(job_type).clone() if is_pir else translation.to_pir(plan.program(job_type))
    )
    if program is not None:
        scope_tracking.keep_variables(program)
    return program
