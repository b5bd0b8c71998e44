"""A call of ``Executor.run`` like one before goes straight to the engine.

Paddle prepares every run anew: it lists the operators of the program to see whether there are any,
looks its executor up, checks the feeds and copies them, and copies what is fetched. That takes half
a millisecond, which small networks do not take themselves. None of it is needed where one engine
operator is the whole program, and the same call ran before: then feeds are read where they are.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from paddle.base import executor as paddle_executor
from paddle.base.framework import Program, Variable
from paddle.pir import Program as PirProgram
from paddle.pir import Value

from paddle_ngraph import flags

if TYPE_CHECKING:
    from paddle_ngraph.executor_hook import SwitchedExecutor

# What an executor remembers of the calls it had, by what Paddle itself tells them apart by.
_KNOWN = "_ngraph_known_calls"
_MOST_CALLS = 64

_thread = threading.local()


def install(executor: Any) -> None:
    """Makes ``paddle.static.Executor`` go straight where it can."""
    executor._run_pir_impl = _going_straight(executor._run_pir_impl)
    executor._run_impl = _going_straight(executor._run_impl)


def ran(switch: SwitchedExecutor) -> None:
    """Tells, after a run, which switch ran in this thread."""
    _thread.last = switch


def _going_straight(original: Any) -> Any:
    @wraps(original)
    def run(self: Any, *args: Any, **call: Any) -> Any:
        if args or not flags.get("use_ngraph") or not _is_plain(self, call):
            return original(self, *args, **call)
        known: dict[str, ReferenceType[SwitchedExecutor]] = self.__dict__.setdefault(_KNOWN, {})
        switch = _known_switch(self, call, known) if known else None
        if switch is not None:
            results = switch.repeat(call["feed"])
            if results is not None:
                return results
        _thread.last = None
        results = original(self, **call)
        if _thread.last is not None and _thread.last.is_repeatable:
            if len(known) >= _MOST_CALLS:
                known.clear()
            known[_key(call)] = ref(_thread.last)
        return results

    return run


def _is_plain(executor: Any, call: dict[str, Any]) -> bool:
    """Whether the call asks for nothing but a run of a program on feeds."""
    program, fetches = call["program"], call["fetch_list"]
    if type(program) not in (PirProgram, Program) or hasattr(program, "lr_scheduler"):
        return False
    if type(program) is Program and (
        program._graph is not None or program._pipeline_opt or program._heter_pipeline_opt
    ):
        return False
    return (
        type(fetches) is list
        and all(isinstance(fetch, (str, Variable, Value)) for fetch in fetches)
        and type(call["feed"]) is dict
        and call["return_numpy"] is True
        and not call.get("use_prune", False)
        and not executor._closed
        and executor.plan is None
        and not executor.enable_job_schedule_profiler
    )


def _known_switch(
    executor: Any, call: dict[str, Any], known: dict[str, ReferenceType[SwitchedExecutor]]
) -> SwitchedExecutor | None:
    reference = known.get(_key(call))
    return None if reference is None else reference()


def _key(call: dict[str, Any]) -> str:
    scope = paddle_executor.global_scope() if call["scope"] is None else call["scope"]
    key: str = paddle_executor._get_strong_program_cache_key_for_new_exe(
        call["program"], scope, call["feed"], call["fetch_list"]
    )
    return key
