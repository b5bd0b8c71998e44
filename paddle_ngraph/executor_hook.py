"""The executor hook: the one link between Paddle's Executor and the program pass.

Every static program, PIR or translated ProgramDesc, ends in one ``core.StandaloneExecutor`` over a
plan of PIR programs. The hook puts a switch there: it keeps the plan, and at each run takes the
native executor or one over a rewritten copy of the plan, as the flag says. Both work on the same
scope, so the switch may be turned between any two runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle.base import core
from paddle.base import executor as paddle_executor

from paddle_ngraph import flags, program_pass


def install() -> None:
    """Installs the hook; a second call changes nothing."""
    original = paddle_executor._StandaloneExecutor
    if issubclass(original, _HookedStandaloneExecutor):
        return
    paddle_executor._StandaloneExecutor = _HookedStandaloneExecutor


class _HookedStandaloneExecutor(paddle_executor._StandaloneExecutor):
    """Paddle's own class, with the switch as its executor."""

    def _create_new_executor(self) -> Any:
        if not self._place.is_cpu_place():
            return super()._create_new_executor()
        return SwitchedExecutor(self._place, self._plan, self._scope)


class SwitchedExecutor:
    """Runs a plan natively or through nGraph, as ``FLAGS_use_ngraph`` says at each run.

    Args:
        place: Where the plan runs: a CPU.
        plan: Paddle's execution plan.
        scope: The variables, shared by both ways.
    """

    def __init__(self, place: Any, plan: Any, scope: Any) -> None:
        self._place = place
        self._plan = plan
        self._scope = scope
        self._native: Any = None
        self._accelerated: Any = None

    def run(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool = False) -> Any:
        """One run; the arguments are those of ``core.StandaloneExecutor.run``."""
        accelerate = flags.get("use_ngraph") and not self._has_empty_feed(feed_names)
        executor = self._accelerated_executor() if accelerate else self._native_executor()
        return executor.run(feed_names, enable_job_schedule_profiler)

    def run_profile(self, feed_names: Sequence[str]) -> Any:
        """Paddle's profiling run: always native."""
        return self._native_executor().run_profile(feed_names)

    def _native_executor(self) -> Any:
        if self._native is None:
            self._native = core.StandaloneExecutor(self._place, self._plan, self._scope)
        return self._native

    def _accelerated_executor(self) -> Any:
        if self._accelerated is None:
            plan = _rewritten(self._plan)
            if plan is None:
                return self._native_executor()
            self._accelerated = core.StandaloneExecutor(self._place, plan, self._scope)
        return self._accelerated

    def _has_empty_feed(self, names: Sequence[str]) -> bool:
        # nGraph functions have no empty dimensions; Paddle's kernels have rules for them.
        for name in names:
            variable = self._scope.find_var(name)
            if variable is not None and 0 in variable.get_tensor().shape():
                return True
        return False


def _rewritten(plan: Any) -> Any | None:
    """A copy of the plan with the program pass applied; ``None`` when nothing can be converted."""
    programs = {}
    converted = 0
    for job_type in plan.job_types():
        program = plan.ir_program(job_type)
        if program is None:  # an old-style program that Paddle runs without PIR
            return None
        programs[job_type] = program.clone()
        converted += program_pass.apply(programs[job_type]).ops_converted
    return core.Plan(plan.job_list(), programs) if converted else None
