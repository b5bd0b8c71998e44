"""A call of ``Executor.run`` that repeats an earlier one goes straight to the engine.

Paddle prepares every run from scratch: it lists the operators of the program to see whether there
are any, looks its executor up, checks the feeds and copies them, and copies what is fetched. That
takes half a millisecond, longer than small networks run. None of it is needed where one engine
operator is the whole program and the same call ran before. Feeds are then read where they are, so
nobody may write to them before the run is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import paddle
from paddle.pir import Program, Value
from paddle.static import Variable, global_scope

from paddle_ngraph import flags
from paddle_ngraph.hook.program_key import key_of_call
from paddle_ngraph.latest import Latest
from paddle_ngraph.paddle_seam import replaced
from paddle_ngraph.paddle_seam.names import (
    OldStyleProgram,
    graph_of,
    heterogeneous_pipeline_of,
    is_closed,
    is_initialized,
    kept_on,
    pipeline_of,
    rate_name_of,
    variable_tensor,
)
from paddle_ngraph.paddle_seam.protocols import Scope

if TYPE_CHECKING:
    from paddle_ngraph.hook.executor_hook import SwitchedExecutor

# What an ``Executor`` remembers of the calls it had, by Paddle's own key of a call.
_KNOWN = "_ngraph_known_calls"
# As many executors as Paddle keeps for an Executor.
_MOST_CALLS = 8

_thread = threading.local()


class _Known(NamedTuple):
    """What a call runs.

    Attributes:
        switch: Runs it.
        program: The user's, kept alive: ids of its variables are valid only while they live.
        prepared: What Paddle made of the program for its first run, and has run since.
    """

    switch: SwitchedExecutor
    program: Any
    prepared: Any


def install() -> None:
    """Makes ``paddle.static.Executor`` take the short way where it can."""
    replaced.RUN_PIR.replace(_going_straight)
    replaced.RUN_OLD_STYLE.replace(_going_straight)


def prepared(program: Any) -> None:
    """Called before a run: records which program Paddle runs in this thread."""
    if getattr(_thread, "asks", False):
        _thread.prepared = program


def ran(switch: SwitchedExecutor) -> None:
    """Called after a run: records which switch ran in this thread."""
    if getattr(_thread, "asks", False):
        _thread.last = switch


def _going_straight(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(self: Any, *args: Any, **call: Any) -> Any:
        if args or not flags.get("use_ngraph") or not _is_plain(self, call):
            return original(self, *args, **call)
        calls = kept_on(self, _KNOWN, _no_calls)
        known = calls.get(_key(call)) if calls else None
        if known is not None:
            set_rate = partial(_set_learning_rate, known.prepared, call)
            results = known.switch.repeat(call["feed"], set_rate)
            if results is not None:
                return results
        results, known = _run_and_ask(original, self, call)
        if known is not None and known.switch.is_repeatable:
            calls.put(_key(call), known)
        return results

    return run


def _no_calls() -> Latest[str, _Known]:
    return Latest(_MOST_CALLS)


def _run_and_ask(
    original: Callable[..., Any], executor: Any, call: dict[str, Any]
) -> tuple[Any, _Known | None]:
    """A run prepared by Paddle: its results, and what ran, if it was a switch."""
    _thread.asks, _thread.last, _thread.prepared = True, None, None
    try:
        results = original(executor, **call)
        if _thread.last is None:
            return results, None
        return results, _Known(_thread.last, call["program"], _thread.prepared)
    finally:
        _thread.asks, _thread.last, _thread.prepared = False, None, None


def _is_plain(executor: Any, call: dict[str, Any]) -> bool:
    """Whether the call asks for nothing but a run of a program on feeds."""
    program, fetches = call["program"], call["fetch_list"]
    if type(program) not in (Program, OldStyleProgram):
        return False
    if type(program) is OldStyleProgram and (
        graph_of(program) is not None or pipeline_of(program) or heterogeneous_pipeline_of(program)
    ):
        return False
    return (
        type(fetches) is list
        and all(isinstance(fetch, (str, Variable, Value)) for fetch in fetches)
        and type(call["feed"]) is dict
        and call["return_numpy"] is True
        and not call.get("use_prune", False)
        and not is_closed(executor)
        and executor.plan is None
        and not executor.enable_job_schedule_profiler
    )


def _set_learning_rate(program: Any, call: dict[str, Any]) -> None:
    """Sets the learning rate of a program that has a scheduler, as Paddle does before a run."""
    scheduler = getattr(program, "lr_scheduler", None)
    if scheduler is None:
        return
    if isinstance(program, Program):
        tensor = variable_tensor(global_scope(), program.lr_name)
    else:
        tensor = variable_tensor(_scope(call), rate_name_of(scheduler))
    if not is_initialized(tensor):
        return  # the run tells it
    before = np.asarray(tensor)
    rate = np.array([scheduler()]).astype(before.dtype)
    if not np.array_equal(before.reshape(-1), rate):  # who writes a variable announces it
        tensor.set(rate, paddle.CPUPlace())


def _key(call: dict[str, Any]) -> str:
    return key_of_call(call["program"], _scope(call), call["feed"], call["fetch_list"])


def _scope(call: dict[str, Any]) -> Scope:
    return global_scope() if call["scope"] is None else call["scope"]
