"""The executor hook: the link between Paddle's Executor and the program pass.

Paddle runs each static program, PIR or ProgramDesc, by a ``StandaloneExecutor`` over a plan. The
hook replaces it by a switch (executor/switch.py) that retains the plan and uses at each run,
depending on the flag, Paddle's executor or an executor of a rewritten copy of the plan. Both work
on one scope, so the flag may change between any two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import paddle

from paddle_ngraph.frontends.executor import (
    call_cache,
    interpreter,
    scope_tracking,
)
from paddle_ngraph.frontends.executor.run import Run, of_argument
from paddle_ngraph.frontends.executor.switch import SwitchedExecutor
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    DenseTensor,
    copy_of,
    exchange_native,
    is_initialized,
    native_of,
    place_of,
    plan_of,
    scope_of,
)
from paddle_ngraph.paddle_private.protocols import Tensor
from paddle_ngraph.utils.fork_safe_locks import new_lock

_prepare_lock = new_lock()
T = TypeVar("T")


def install() -> None:
    """Patches Paddle's executors; a second call changes nothing."""
    scope_tracking.install()
    call_cache.install()
    replaced.CREATE_EXECUTOR.replace(_creating_switch)
    replaced.RUN_EXECUTOR.replace(_with_switch)
    replaced.CREATE_PLAN.replace(_with_flag_as_set)
    replaced.ADD_FETCHES.replace(_serialized)
    replaced.ADD_FETCH.replace(_serialized)


def _with_flag_as_set(original: Callable[..., T]) -> Callable[..., T]:
    """Patches a function to run with the user's value of ``FLAGS_enable_pir_in_executor``.

    The plan that Paddle makes of a ProgramDesc program depends on the flag.
    """

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> T:
        with interpreter.PIR_IN_EXECUTOR_AS_SET:
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


def _creating_switch(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Creates a :class:`SwitchedExecutor` in place of Paddle's executor, on CPUs."""

    @wraps(original)
    def create_new_executor(self: Any) -> Any:
        if not place_of(self).is_cpu_place():
            return original(self)
        return SwitchedExecutor(place_of(self), plan_of(self), scope_of(self))

    return create_new_executor


def _with_switch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` of an executor; an executor that was created before the hook gets its switch here.

    Its interpreter is rebuilt, because nothing has recorded whether its variables were erased. A
    ProgramDesc program that was fed before the hook runs by Paddle once more, since its feeds have
    Paddle's format.
    """

    @wraps(original)
    def run(
        self: Any,
        feed_names: Sequence[str],
        return_numpy: bool = True,
        enable_job_schedule_profiler: Run | bool = False,
    ) -> Any:
        place, executor = place_of(self), native_of(self)
        if not place.is_cpu_place():
            return original(self, feed_names, return_numpy, enable_job_schedule_profiler)
        if not isinstance(executor, SwitchedExecutor):
            executor = SwitchedExecutor(place, plan_of(self), scope_of(self), is_unused=False)
            exchange_native(self, executor)
        this_run = of_argument(enable_job_schedule_profiler)
        this_run.is_on &= this_run is enable_job_schedule_profiler or not executor.is_legacy
        results = original(self, feed_names, return_numpy, this_run)
        return _with_own_memory(results) if executor.is_legacy and this_run.is_on else results

    return run


def _with_own_memory(results: list[Any]) -> list[Any]:
    """Copies results, so that later runs do not write to the memory of the copies.

    In Paddle, results of ProgramDesc programs have their own memory, results of PIR programs do
    not.
    """
    return [_copy(each) if isinstance(each, DenseTensor) else each for each in results]


def _copy(tensor: Tensor) -> Tensor:
    if not is_initialized(tensor) or 0 in tensor.shape():
        return tensor  # a tensor without data is not copied
    copy = copy_of(tensor, paddle.CPUPlace())
    if lod := tensor.lod():
        copy.set_lod(lod)
    return copy
