"""The rewritten copy of a plan, and the strategies by which it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import numpy as np

from paddle_ngraph import _core
from paddle_ngraph.conversion import denylist
from paddle_ngraph.frontends import dispatcher
from paddle_ngraph.frontends.executor import (
    interpreter,
    paddle_plans,
    scope_tracking,
    weight_writes,
    whole_program,
)
from paddle_ngraph.frontends.executor.pass_results import RewrittenPrograms
from paddle_ngraph.frontends.executor.run import Run
from paddle_ngraph.paddle_private.names import PaddlePlan, is_initialized
from paddle_ngraph.paddle_private.protocols import Executor, Plan, Program, Scope
from paddle_ngraph.partitioning import operator_chains
from paddle_ngraph.utils import signals


class RewrittenPlan:
    """A plan of rewritten PIR programs, also of those that were translated from ProgramDesc.

    Args:
        place, scope: The device, a CPU, and the variables.
        plan: Paddle's plan, of which the programs are rewritten copies.
        rewritten: The rewritten programs.
    """

    def __init__(self, place: Any, plan: Plan, scope: Scope, rewritten: RewrittenPrograms) -> None:
        # Retained, so that the engines, with their functions, live as long as the plan.
        self._engines = [_core.NgraphEngine(graph) for graph in rewritten.graphs]
        self._denials = denylist.DenialWatcher(rewritten.graphs)
        self._sequential_run = (
            interpreter.SEQUENTIAL_RUN if rewritten.runs_in_order else nullcontext()
        )
        self._creation = (
            interpreter.WITHOUT_INPLACE_PASS if rewritten.shares_memory else nullcontext()
        )
        # Runs operators in the calling thread if the engine computes all of them: each uses several
        # threads itself, while Paddle would run the operators in parallel threads. So does a plan
        # with a Python function of the user, which expects its thread.
        runs_python = paddle_plans.runs_python(plan)
        in_one_thread = rewritten.runs_all or rewritten.has_order or runs_python
        self._trace_run = interpreter.TRACE_RUN if in_one_thread else nullcontext()
        self._outside = interpreter.ReleasedPir() if runs_python else None
        self._has_run = False
        self._place, self._paddle_plan, self._scope = place, plan, scope
        self._rewritten = rewritten
        self._interpreter = scope_tracking.ScopeBound(scope, self._names, self._create_interpreter)
        self._whole = scope_tracking.ScopeBound(scope, self._names, self._find_whole)
        may_schedule = rewritten.is_single and not rewritten.has_order
        self._extensions = dispatcher.extensions_for(lambda: self._programs, may_schedule)
        self._extended = [
            scope_tracking.ScopeBound(scope, self._names, partial(_bound, each, scope))
            for each in self._extensions
        ]
        self.strategies: tuple[dispatcher.Strategy[Run, Any], ...] = (
            self._run_whole,
            self._run_extension,
            self._run_interpreter,
        )

    @cached_property
    def _programs(self) -> dict[str, Program]:
        """Copies of the programs by job type, for Paddle's executors and for extensions."""
        return self._rewritten.copies()

    @property
    def whole(self) -> whole_program.WholeProgram | None:
        """The rewritten program as one engine operator; ``None`` if it has other operators."""
        return self._whole.get()

    @property
    def direct(self) -> dispatcher.DirectProgram | None:
        """The programs as a DirectProgram, without Paddle's interpreter; ``None`` if impossible."""
        return self._whole.get() or self._extension()

    def _extension(self) -> dispatcher.DirectProgram | None:
        """The program of the first extension that can run it; ``None`` if there is none."""
        for each in self._extended:
            if (found := each.get()) is not None:
                return found
        return None

    def _run_whole(self, run: Run) -> Any:
        return self._run_directly(run, self._whole.get)

    def _run_extension(self, run: Run) -> Any:
        return self._run_directly(run, self._extension)

    def _run_directly(self, run: Run, find: Callable[[], dispatcher.DirectProgram | None]) -> Any:
        if run.is_profiled or _core.observes_operators() or (program := find()) is None:
            return dispatcher.NOT_HANDLED
        return whole_program.Fetched(program.run())

    def _run_interpreter(self, run: Run) -> Any:
        if self._has_run:
            return self._interpret(run)
        # The first run builds functions, perhaps in other threads.
        with signals.seen_by_other_threads():
            results = self._interpret(run)
        self._has_run = True
        return results

    def _interpret(self, run: Run) -> Any:
        with (
            # Handlers of signals run inside a Python function of the user, as in a run by Paddle.
            signals.deferred_signals(except_ctrl_c=True)
            if self._outside is None
            else operator_chains.outside.overridden(self._outside),
            interpreter.PIR_IN_EXECUTOR,
            self._sequential_run,
            self._trace_run,
        ):
            return self._interpreter.get().run(list(run.feed_names), run.is_profiled)

    def check_feeds(self, feed: Mapping[str, Any] | None = None) -> None:
        """Raises an error for feeds that a strategy added by an extension does not accept.

        Args:
            feed: Feeds by name, as for ``Executor.run``; ``None``: the contents of the scope.
        """
        for each in self._extensions:
            each.check_feeds(
                self._shape_of if feed is None else lambda name: _shape_of_array(feed.get(name))
            )

    def _shape_of(self, name: str) -> Sequence[int]:
        variable = self._scope.find_var(name)
        return () if variable is None else tuple(weight_writes.tensor_of(variable).shape())

    def has_missing_variable(self) -> bool:
        """Whether a variable that a ProgramDesc program reads from the scope has no data.

        Paddle runs the original then, which raises an error where the translation would not.
        """
        variables = map(self._scope.find_var, self._rewritten.unfed)
        return any(
            found is None or not is_initialized(weight_writes.tensor_of(found))
            for found in variables
        )

    def _create_interpreter(self, binding: scope_tracking.Binding) -> Executor:
        plan = PaddlePlan(self._paddle_plan.job_list(), self._programs)
        binding.report_erased(self._programs.values())
        with self._creation:
            return interpreter.create(self._place, plan, self._scope)

    def _find_whole(self, _: scope_tracking.Binding) -> whole_program.WholeProgram | None:
        whole = self._rewritten.whole
        return None if whole is None else whole_program.in_scope(whole, self._scope)

    def _names(self) -> frozenset[str]:
        return self._rewritten.names

    def has_new_denials(self) -> bool:
        """Whether a run has denylisted the graph of one of this plan's engine operators."""
        return self._denials.has_new_denials()


def _bound(
    extension: dispatcher.Extension, scope: Scope, _: scope_tracking.Binding
) -> dispatcher.DirectProgram | None:
    return extension.bind(scope)


def _shape_of_array(feed: Any) -> Sequence[int]:
    return feed.shape if isinstance(feed, np.ndarray) else ()
