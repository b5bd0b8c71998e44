"""The executor hook: the one link between Paddle's Executor and the program pass.

Every static program, PIR or translated ProgramDesc, ends in one ``core.StandaloneExecutor`` over a
plan of PIR programs. The hook puts a switch there: it keeps the plan, and at each run takes the
native executor or one over a rewritten copy of the plan, as the flag says. Both work on the same
scope, so the switch may be turned between any two runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import paddle
from paddle.base import core
from paddle.base import executor as paddle_executor

from paddle_ngraph import flags, program_pass


def install() -> None:
    """Installs the hook; a second call changes nothing."""
    original = paddle_executor._StandaloneExecutor
    if issubclass(original, _HookedStandaloneExecutor):
        return
    paddle_executor._StandaloneExecutor = _HookedStandaloneExecutor  # type: ignore[misc]
    feed_data = _feed_both_forms(paddle_executor.Executor._feed_data)
    paddle_executor.Executor._feed_data = feed_data  # type: ignore[method-assign]


def _feed_both_forms(original: Any) -> Any:
    """Paddle hands feeds to an old-style program in a list, to a PIR program by name.

    The switch may turn an old-style program into a PIR one, so that it gets both.
    """

    @wraps(original)
    def feed_data(
        self: Any, program: Any, feed: dict[str, Any], feed_var_name: str, scope: Any
    ) -> None:
        if flags.get("use_ngraph") and self.place.is_cpu_place():
            feed = {name: _as_tensor(value, self.place) for name, value in feed.items()}
            with _pir_in_executor():
                original(self, program, feed, feed_var_name, scope)
        original(self, program, feed, feed_var_name, scope)

    return feed_data


def _as_tensor(value: Any, place: Any) -> Any:
    return paddle_executor._as_lodtensor(value, place) if isinstance(value, np.ndarray) else value


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
            self._accelerated = (
                self._native_executor()
                if plan is None
                else _PirExecutor(self._place, plan, self._scope)
            )
        return self._accelerated

    def _has_empty_feed(self, names: Sequence[str]) -> bool:
        # nGraph functions have no empty dimensions; Paddle's kernels have rules for them.
        for name in names:
            variable = self._scope.find_var(name)
            if variable is not None and 0 in variable.get_tensor().shape():
                return True
        return False


class _PirExecutor:
    """``core.StandaloneExecutor`` over PIR programs, also where Paddle runs old-style ones."""

    def __init__(self, place: Any, plan: Any, scope: Any) -> None:
        with _pir_in_executor():
            self._executor = core.StandaloneExecutor(place, plan, scope)

    def run(self, feed_names: Sequence[str], enable_job_schedule_profiler: bool) -> Any:
        with _pir_in_executor():
            return self._executor.run(list(feed_names), enable_job_schedule_profiler)


class _PirInExecutor:
    """Paddle's flag that makes its executor take PIR programs, on while any thread needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._before = bool(paddle.get_flags([_PIR_FLAG])[_PIR_FLAG])
                if not self._before:
                    paddle.set_flags({_PIR_FLAG: True})
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and not self._before:
                    paddle.set_flags({_PIR_FLAG: False})


_PIR_FLAG = "FLAGS_enable_pir_in_executor"
_pir_in_executor = _PirInExecutor()


def _rewritten(plan: Any) -> Any | None:
    """A copy of the plan with the program pass applied; ``None`` when nothing can be converted."""
    programs = {}
    converted = 0
    for job_type in {job.type() for job in plan.job_list()}:
        programs[job_type] = _pir_program(plan, job_type)
        converted += program_pass.apply(programs[job_type]).ops_converted
    return core.Plan(plan.job_list(), programs) if converted else None


def _pir_program(plan: Any, job_type: str) -> Any:
    """A program of the plan, copied; an old-style one is translated."""
    if job_type in plan.job_types():
        return plan.ir_program(job_type).clone()
    program = paddle.pir.translate_to_pir(plan.program(job_type))
    _fetch_each_column_once(program.global_block())
    return program


def _fetch_each_column_once(block: Any) -> None:
    """Give old-style fetch operators what PIR expects: one for a column, no name twice.

    A loaded program has fetch operators of its own, to which ``Executor.run`` adds others of the
    same columns; the last one writes last. One variable may be fetched into several columns.
    """
    fetches = [op for op in block.ops if op.name() == "pd_op.fetch"]
    last = {op.attrs()["col"]: op for op in fetches}
    for op in fetches:
        if last[op.attrs()["col"]] is not op:
            block.remove_op(op)
    names: set[str] = set()
    for column, op in last.items():
        name = op.attrs()["name"]
        if name in names:
            op.set_str_attr("name", f"{name}_{column}")
        names.add(op.attrs()["name"])
