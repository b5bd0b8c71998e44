"""SwitchedExecutor: replaces Paddle's interpreter of a plan, and runs the plan by a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.frontends import dispatcher, ngraph_transpiler, program_id
from paddle_ngraph.frontends.executor import (
    interpreter,
    paddle_plans,
    pass_results,
    scope_tracking,
    weight_writes,
    whole_program,
)
from paddle_ngraph.frontends.executor.pass_results import PassResult, RewrittenPrograms
from paddle_ngraph.frontends.executor.rewritten_plan import RewrittenPlan
from paddle_ngraph.frontends.executor.run import Run, of_argument
from paddle_ngraph.frontends.program_desc import single_assignment, translation
from paddle_ngraph.paddle_private.names import clear_tensor, values_of
from paddle_ngraph.paddle_private.protocols import (
    Executor,
    Plan,
    Program,
    Scope,
    Tensor,
    Variable,
)
from paddle_ngraph.partitioning import cost_model
from paddle_ngraph.partitioning.analysis.block_view import (
    has_engines,
    may_write_variables,
    nodes_of,
)
from paddle_ngraph.partitioning.report import Report
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils import signals
from paddle_ngraph.utils.fork_safe_locks import new_lock

_NOT_CONVERTIBLE, _COST_RULE = int(_core.Reason.NOT_CONVERTIBLE), int(_core.Reason.COST_RULE)
_EMPTY_FEED, _LOD_FEED = int(_core.Reason.EMPTY_FEED), int(_core.Reason.LOD_FEED)
_UNTRANSLATABLE = int(_core.Reason.UNTRANSLATABLE)
_MISSING_VARIABLE, _SIGNAL = int(_core.Reason.MISSING_VARIABLE), int(_core.Reason.SIGNAL)


_plans = count(1)


class SwitchedExecutor:
    """Runs a plan by Paddle or through the engine, depending on ``FLAGS_use_ngraph`` at each run.

    Programs that contain engine operators already run unmodified when the flag is off.

    Args:
        place: The device of the plan: a CPU.
        plan: Paddle's plan.
        scope: The variables, shared by both paths of execution.
        is_unused: Whether no executor of the plan has been created.

    Attributes:
        is_legacy: Whether the plan consists of ProgramDesc programs.
    """

    def __init__(self, place: Any, plan: Plan, scope: Scope, is_unused: bool = True) -> None:
        self._place = place
        self._paddle_plan = plan
        self._scope = scope
        self._name = f"plan {next(_plans)}"
        self.is_legacy = any(t not in plan.job_types() for t in paddle_plans.job_types(plan))
        # Whether Paddle's executor of the plan is still to be created for the first time.
        self._is_unused = is_unused
        self._paddle_executor = scope_tracking.ScopeBound(
            scope, self._names, self._create_paddle_executor
        )
        self._pass_result: PassResult | None = None
        self._rewritten: RewrittenPlan | None = None
        self._transpiled: RewrittenPlan | None = None
        self._is_transpiled = any(map(has_engines, map(plan.ir_program, plan.job_types())))
        self._rewrite_lock = new_lock()
        # Whether the rewritten programs suit feeds of all sizes: the cost model left no subgraph to
        # Paddle, or did not apply.
        self._is_whole = True
        # The reason of the events of native runs while there is no rewritten plan.
        self._unrewritten_reason = _NOT_CONVERTIBLE
        self._program_id = 0  # of events; 0: not determined yet
        self._small_runs = 0  # number of runs in which the cost model found the programs too small
        # Whether a run may write variables of the scope; ``None`` until that is determined.
        self._may_write: bool | None = None
        # Names of the persistable variables of a ProgramDesc plan; ``None`` until determined.
        self._persistable: frozenset[str] | None = None
        # A function of py_func may run a program, during which this run must not override the flag.
        self._paddle_flag = (
            nullcontext() if paddle_plans.runs_python(plan) else interpreter.PIR_IN_EXECUTOR_AS_SET
        )
        self._sequential_run = (
            interpreter.SequentialPaddleRun() if paddle_plans.is_sequential(plan) else nullcontext()
        )

    def run(
        self, feed_names: Sequence[str], enable_job_schedule_profiler: Run | bool = False
    ) -> Any:
        """Runs the plan once.

        Args:
            feed_names: The names of the feeds, as for ``StandaloneExecutor.run``.
            enable_job_schedule_profiler: Paddle's flag of this name; or, from the package's
                ``Executor.run``, the Run, of which that flag is an attribute.
        """
        run = of_argument(enable_job_schedule_profiler)
        run.feed_names = feed_names
        try:
            with weight_writes.run_of(self._may_write_variables()):
                return dispatcher.dispatch(self._strategies(run), run)
        finally:
            if self.is_legacy:
                self._clear_feeds(feed_names)
            run.switch = self

    def _strategies(self, run: Run) -> Iterable[dispatcher.Strategy[Run, Any]]:
        """The strategies that may handle a run, in the order in which they are tried."""
        rewritten = self._rewritten_for(run) if run.is_on else None
        rewritten = rewritten or self._transpiled_plan()
        if rewritten is None:
            return (self._run_fallback if run.native_reason is None else self._run_recorded,)
        self._is_unused = False
        rewritten.check_feeds()
        return rewritten.strategies

    def is_repeatable(self, is_on: bool) -> bool:
        """Whether :meth:`repeat` may repeat the last run, with this value of the flag."""
        rewritten = self._plan_of_last_run(is_on)
        return rewritten is not None and rewritten.direct is not None

    def _plan_of_last_run(self, is_on: bool) -> RewrittenPlan | None:
        """The plan of the last run, if all runs on feeds of equal names surely use that plan."""
        if not is_on:
            return self._transpiled
        # ``None`` for a program with small subgraphs: the sizes of the feeds decide whether these
        # run on the engine.
        return self._rewritten if self._pass_result is not None and self._is_whole else None

    def repeat(
        self, feed: dict[str, Any], prepare: Callable[[], None], is_on: bool
    ) -> list[np.ndarray] | None:
        """Repeats the last run, on other feeds.

        Args:
            feed: The feeds by name, as for ``Executor.run``.
            prepare: Called before the run.
            is_on: Whether the engine is on.

        Returns:
            The fetched results. ``None`` if no run was possible, so that :meth:`run` is needed.
        """
        rewritten = self._plan_of_last_run(is_on)
        direct = None if rewritten is None else rewritten.direct
        if (
            rewritten is None
            or direct is None
            or _core.observes_operators()
            or rewritten.has_new_denials()
        ):
            return None
        prepare()
        rewritten.check_feeds(feed)
        return direct.run_on(feed)

    def run_profile(self, feed_names: Sequence[str]) -> Any:
        """Runs Paddle's profiler on the original programs, never on the rewritten ones."""
        with self._paddle_flag:
            return self._paddle_executor.get().run_profile(feed_names)

    def _may_write_variables(self) -> bool:
        """Whether a run may write variables of the scope."""
        if self._may_write is None:
            found = pass_results.find(pass_results.key_of(self._paddle_plan))
            if found is None:
                self._may_write = _may_write(
                    paddle_plans.pir_programs(self._paddle_plan, self._name)
                )
            else:
                self._may_write = found.may_write
        return self._may_write

    def _run_recorded(self, run: Run) -> Any:
        """Runs the fallback, and records an event with the reason of the run."""
        assert run.native_reason is not None
        start = _core.ticks()
        try:
            return self._run_fallback(run)
        finally:
            _core.record_event(run.native_reason, self._id(), start)

    def _id(self) -> int:
        """The id of the programs in events."""
        if self._program_id == 0:
            self._program_id = program_id.of(paddle_plans.programs(self._paddle_plan).values())
        return self._program_id

    def _run_fallback(self, run: Run) -> Any:
        with self._paddle_flag, self._sequential_run:
            found = self._paddle_executor.get().run(run.feed_names, run.is_profiled)
        return (
            found
            if self._paddle_flag is interpreter.PIR_IN_EXECUTOR_AS_SET
            else self._fetched(found)
        )

    def _fetched(self, found: Any) -> Any:
        """The results of a run by Paddle, during which another thread may have switched the flag.

        If the flag was on at the end, Paddle looks for the results of a PIR program, and finds
        none. The results of this run are in the scope.
        """
        values = values_of(found)
        if not values and self._fetches():
            values = values_of(self._variable(translation.FETCHED).get_fetch_list())
        return whole_program.Fetched(values)

    def _fetches(self) -> bool:
        blocks = (program.block(0) for program in paddle_plans.legacy_programs(self._paddle_plan))
        operators = (op for block in blocks for op in single_assignment.operators(block))
        return any(op.type() in ("fetch", "fetch_v2") for op in operators)

    def _create_paddle_executor(self, binding: scope_tracking.Binding) -> Executor:
        """Creates Paddle's executor of the plan; only the first one creates the variables."""
        plan = (
            paddle_plans.plan_for_paddle(self._paddle_plan)
            if self._is_unused
            else paddle_plans.with_existing_variables(self._paddle_plan)
        )
        self._is_unused = False
        binding.report_erased(map(plan.ir_program, plan.job_types()))
        # Overrides the flag even for plans whose runs must not (py_func): no program runs inside
        # this block.
        with (
            nullcontext()
            if self._paddle_flag is interpreter.PIR_IN_EXECUTOR_AS_SET
            else interpreter.PIR_IN_EXECUTOR_AS_SET
        ):
            return interpreter.create(self._place, plan, self._scope)

    def _names(self) -> frozenset[str]:
        return scope_tracking.names_in(paddle_plans.programs(self._paddle_plan).values())

    def _rewritten_for(self, run: Run) -> RewrittenPlan | None:
        """The rewritten plan for a run; ``None`` when Paddle has to run the program as a whole."""
        fed = self._feed_shapes(run.feed_names)
        if self.is_legacy and any(self._tensor(name).lod() for name in fed):
            run.native_reason = _LOD_FEED
            return None
        if any(0 in shape for shape in fed.values()):
            # Paddle runs empty feeds: functions of nGraph have no empty dimensions, and Paddle's
            # kernels have rules for them.
            run.native_reason = _EMPTY_FEED
            return None
        if self._pass_result is None or self._has_outgrown(fed) or self._has_new_denials():
            with signals.deferred_signals(), self._rewrite_lock:
                if self._pass_result is None or self._has_outgrown(fed) or self._has_new_denials():
                    try:
                        with signals.abandonable():
                            self._rewrite_for(fed)
                    except signals.Abandoned:
                        run.native_reason = _SIGNAL
                        return None
        elif not self._is_whole:
            self._small_runs += 1
            if self._small_runs == SETTINGS.small_runs_before_rewrite:
                with signals.deferred_signals():
                    self._rewrite_whole_program()
        if (
            self.is_legacy
            and self._rewritten is not None
            and self._rewritten.has_missing_variable()
        ):
            # The run falls back to Paddle, which reports the missing variable.
            run.native_reason = _MISSING_VARIABLE
            return None
        if self._rewritten is None:
            run.native_reason = self._unrewritten_reason
        return self._rewritten

    def _transpiled_plan(self) -> RewrittenPlan | None:
        """The plan of unmodified programs that contain engine operators, if there are any."""
        if self._is_transpiled and self._transpiled is None:
            with signals.deferred_signals(), self._rewrite_lock:
                if self._transpiled is None:
                    programs = paddle_plans.pir_programs(self._paddle_plan, self._name)
                    nodes = (node for each in programs.values() for node in nodes_of(each))
                    stochastic = sum(node.draws for node in nodes)
                    self._transpiled = self._create_rewritten_plan(
                        RewrittenPrograms(self._paddle_plan, programs, stochastic)
                    )
        return self._transpiled

    def _rewrite_for(self, fed: dict[str, list[int]]) -> None:
        """Rewrites the programs of the plan by the pass, for feeds of these shapes.

        A result of the pass on equal programs is used again.
        """
        key = pass_results.key_of(self._paddle_plan)
        result = pass_results.find(key)
        if result is None or result.is_outgrown_by(_largest_size(fed, result.dynamic_axes)):
            result = self._new_pass_result(fed)
            pass_results.add(key, result)
        else:
            result.record()
        self._rewritten = self._create_rewritten_plan(result.rewritten)
        if not result.is_translated:
            self._unrewritten_reason = _UNTRANSLATABLE
        else:
            self._unrewritten_reason = _COST_RULE if result.size > 0 else _NOT_CONVERTIBLE
        self._is_whole = result.size == 0
        self._pass_result = result  # last: other threads read the rest without the lock

    def _new_pass_result(self, fed: dict[str, list[int]]) -> PassResult:
        """Applies the pass to copies of the plan's programs."""
        programs = paddle_plans.pir_programs(self._paddle_plan, self._name)
        axes = cost_model.dynamic_axes(programs.values())
        size = _largest_size(fed, axes)
        reports = self._rewrite(programs, size)
        has_changed = any(report.changes or report.engines for report in reports)
        is_small = any(report.has_small_interval for report in reports)
        return PassResult(
            rewritten=self._rewritten_programs(programs, reports) if has_changed else None,
            dynamic_axes=axes,
            size=size if is_small else 0,
            may_write=self._may_write_variables(),
            is_translated=bool(programs),
            conversions=pass_results.conversions_of(reports),
        )

    def _rewrite_whole_program(self) -> None:
        """Rewrites the plan's programs without the cost model.

        Uses the rewritten plan for runs if it is a single program of one engine operator.
        """
        programs = paddle_plans.pir_programs(self._paddle_plan, self._name)
        if not ngraph_transpiler.could_be_single_engine(programs.values()):
            return
        reports = self._rewrite(programs, None)
        rewritten = self._create_rewritten_plan(self._rewritten_programs(programs, reports))
        if rewritten is not None and rewritten.whole is not None:
            self._rewritten, self._is_whole = rewritten, True

    def _rewrite(self, programs: dict[str, Program], size: int | None) -> list[Report]:
        """Rewrites ``programs`` by the pass, for feeds of ``size``; returns the reports."""
        may_write = self._may_write_variables()
        rewrite = ngraph_transpiler.rewrite
        reports = [rewrite(each, may_write, size, tries=False) for each in programs.values()]
        for program in programs.values():
            scope_tracking.copy_named_members(program)
        return reports

    def _rewritten_programs(
        self, programs: dict[str, Program], reports: Sequence[Report]
    ) -> RewrittenPrograms:
        stochastic = sum(report.drawing for report in reports)
        return RewrittenPrograms(self._paddle_plan, programs, stochastic)

    def _create_rewritten_plan(self, rewritten: RewrittenPrograms | None) -> RewrittenPlan | None:
        if rewritten is None:
            return None
        return RewrittenPlan(self._place, self._paddle_plan, self._scope, rewritten)

    def _has_new_denials(self) -> bool:
        """Whether runs have put a subgraph of the rewritten programs on the denylist."""
        return self._rewritten is not None and self._rewritten.has_new_denials()

    def _has_outgrown(self, fed: dict[str, list[int]]) -> bool:
        """Whether feeds have grown so much since the rewrite that small subgraphs may pay off."""
        result = self._pass_result
        if self._is_whole or result is None:
            return False
        return result.is_outgrown_by(_largest_size(fed, result.dynamic_axes))

    def _tensor(self, name: str) -> Tensor:
        return self._variable(name).get_tensor()

    def _variable(self, name: str) -> Variable:
        found = self._scope.find_var(name)
        # A fetched variable always exists: it was fed, or Paddle's executor has written it.
        assert found is not None
        return found

    def _clear_feeds(self, names: Sequence[str]) -> None:
        """Clears the variables of feeds: ProgramDesc programs must not find them in later runs.

        Persistable variables, such as a parameter that is fed, retain their contents.
        """
        if self._persistable is None:
            self._persistable = paddle_plans.persistable_in(
                paddle_plans.legacy_programs(self._paddle_plan)
            )
        for name in names:
            if name in self._persistable:
                continue
            if (variable := self._scope.find_var(name)) is not None:
                clear_tensor(variable.get_tensor())

    def _feed_shapes(self, names: Sequence[str]) -> dict[str, list[int]]:
        variables = ((name, self._scope.find_var(name)) for name in names)
        found = {name: variable for name, variable in variables if variable is not None}
        return {name: weight_writes.tensor_of(each).shape() for name, each in found.items()}


def _may_write(programs: dict[str, Program]) -> bool:
    """Whether a run may write variables of the scope; unknown programs may."""
    return not programs or any(map(may_write_variables, programs.values()))


def _largest_size(fed: dict[str, list[int]], axes: Sequence[tuple[str, int]]) -> int:
    """The largest size in a feed of a dimension that the program declares as dynamic."""
    sizes = (fed[name][axis] for name, axis in axes if axis < len(fed.get(name, ())))
    return max(sizes, default=SETTINGS.typical_dimension_size)
