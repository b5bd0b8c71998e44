"""Call cache of ``Executor.run``: a call that repeats an earlier one runs the engine directly.

Paddle prepares every run from scratch: Executor lists the operators of the program to see whether
there are any, looks its executor up, checks the feeds and copies them, and copies the fetched
results. That takes half a millisecond, longer than small networks run. None of it is needed where
one engine operator is the whole program and an equal call ran before. Feeds are then read in place,
so they must not be written before the run is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np
import paddle
from paddle.pir import Program, Value
from paddle.static import Variable, global_scope

from paddle_ngraph import _core
from paddle_ngraph.frontends.executor.program_key import is_ours, key_of_call
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.names import (
    LegacyProgram,
    attached_to,
    cache_key_of_names,
    graph_of,
    heterogeneous_pipeline_of,
    is_closed,
    is_initialized,
    pipeline_of,
    rate_name_of,
    text_hash_of,
    variable_tensor,
)
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each

# The attribute of an ``Executor`` that holds its ``_CallCache``.
_CACHE_ATTRIBUTE = "_ngraph_known_calls"
_CALLS = cache_of_each(
    "`Executor`",
    __name__,
    "calls",
    "calls and their executors",
    key="Paddle's own key of the call",
    bound=8,  # the number of executors that Paddle caches per Executor
)

_thread = threading.local()


class Repeatable(Protocol):
    """An executor whose last run can be repeated on other feeds, without Paddle's preparation."""

    @property
    def is_repeatable(self) -> bool:
        """Whether :meth:`repeat` may repeat the last run."""

    def repeat(self, feed: dict[str, Any], prepare: Callable[[], None]) -> list[np.ndarray] | None:
        """Repeats the last run on other feeds; ``None`` if no run was possible."""


class _CachedCall(NamedTuple):
    """A call and its executor. The entry keeps alive the objects that identify the call.

    Attributes:
        switch: The executor that runs the call.
        prepared: The program that Paddle prepared for the first run, and has run since.
        program: The user's program: ids of its variables are valid only while they live.
        is_unchanged: Whether the program and the names of the fetched variables are unchanged.
        scope, feeds, fetches: Those of the call; ``feeds`` are names.
    """

    switch: Repeatable
    prepared: Any
    program: Any
    is_unchanged: Callable[[], bool]
    scope: Scope
    feeds: tuple[str, ...]
    fetches: tuple[Any, ...]

    def is_repeated_by(self, call: dict[str, Any]) -> bool:
        """Whether another call surely has the same key."""
        fetches = call["fetch_list"]
        return (
            call["program"] is self.program
            and len(fetches) == len(self.fetches)
            and all(map(is_, fetches, self.fetches))
            and tuple(call["feed"]) == self.feeds
            and _scope(call) is self.scope
            and _is_plain_program(self.program)
            and self.is_unchanged()
        )


class _CallCache(LRUCache[str, _CachedCall]):
    """The cached calls of an ``Executor`` by Paddle's own key, and the last one of them.

    Computing the key takes longer than a comparison with the last call.
    """

    def __init__(self) -> None:
        super().__init__(_CALLS.bound)
        self._last: _CachedCall | None = None

    def find(self, call: dict[str, Any]) -> _CachedCall | None:
        """The cached entry of a call, if there is one."""
        last = self._last
        if last is not None and last.is_repeated_by(call):
            return last
        if not len(self) or not _is_cacheable(call):
            return None
        # Another thread may set self._last between two reads.
        self._last = found = self.get(_key(call))
        return found

    def remember(self, call: dict[str, Any], cached: _CachedCall) -> None:
        """Caches the entry of a call."""
        self._last = self.put(_key(call), cached)


def install() -> None:
    """Patches ``paddle.static.Executor`` to use its call cache."""
    replaced.RUN_PIR.replace(_with_call_cache)
    replaced.RUN_LEGACY.replace(_with_call_cache)


def prepared(program: Any) -> None:
    """Called before a run: records which program Paddle runs in this thread."""
    if getattr(_thread, "is_recording", False):
        _thread.prepared = program


def ran(switch: Repeatable) -> None:
    """Called after a run: records which switch ran in this thread."""
    if getattr(_thread, "is_recording", False):
        _thread.last = switch


def _with_call_cache(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(self: Any, *args: Any, **call: Any) -> Any:
        if args or not is_ours(call["program"]) or not _is_plain(self, call):
            return original(self, *args, **call)
        calls = attached_to(self, _CACHE_ATTRIBUTE, _CallCache)
        cached = calls.find(call)
        if cached is not None:
            set_rate = partial(_set_learning_rate, cached.prepared, call)
            results = cached.switch.repeat(call["feed"], set_rate)
            if results is not None:
                return results
        if not _is_cacheable(call):
            return original(self, **call)
        results, cached = _run_and_record(original, self, call)
        if cached is not None and cached.switch.is_repeatable:
            calls.remember(call, cached)
        return results

    return run


def _run_and_record(
    original: Callable[..., Any], executor: Any, call: dict[str, Any]
) -> tuple[Any, _CachedCall | None]:
    """A run prepared by Paddle: its results, and the entry to cache if a switch ran."""
    _thread.is_recording, _thread.last, _thread.prepared = True, None, None
    try:
        results = original(executor, **call)
        if _thread.last is None:
            return results, None
        return results, _cached_call(_thread.last, _thread.prepared, call)
    finally:
        _thread.is_recording, _thread.last, _thread.prepared = False, None, None


def _cached_call(switch: Repeatable, prepared: Any, call: dict[str, Any]) -> _CachedCall:
    program = call["program"]
    feeds, fetches = tuple(call["feed"]), tuple(call["fetch_list"])
    is_unchanged = _is_unchanged(program, fetches)
    return _CachedCall(switch, prepared, program, is_unchanged, _scope(call), feeds, fetches)


def _is_unchanged(program: Any, fetches: tuple[Any, ...]) -> Callable[[], bool]:
    """A function that returns whether the program and the names of its fetches are unchanged.

    The fetches of a ProgramDesc program may be variables of another program, of which this one
    is a clone.
    """
    if type(program) is Program:
        return partial(_core.ProgramState(program).matches, program)

    def key() -> tuple[str, str]:
        return text_hash_of(program), cache_key_of_names({}, fetches)

    initial_key = key()
    return lambda: key() == initial_key


def _is_cacheable(call: dict[str, Any]) -> bool:
    """Whether the call runs a plain program, and fetches values of it."""
    return _is_plain_program(call["program"]) and all(
        isinstance(fetch, (str, Variable, Value)) for fetch in call["fetch_list"]
    )


def _is_plain_program(program: Any) -> bool:
    """Whether a program is a PIR program, or a ProgramDesc program without graph or pipeline."""
    if type(program) is Program:
        return True
    return (
        type(program) is LegacyProgram
        and graph_of(program) is None
        and not pipeline_of(program)
        and not heterogeneous_pipeline_of(program)
    )


def _is_plain(executor: Any, call: dict[str, Any]) -> bool:
    """Whether the call is a run on feeds with NumPy results, without profiler or pruning."""
    return (
        type(call["fetch_list"]) is list
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
        return  # the run reports it
    before = np.asarray(tensor)
    rate = np.array([scheduler()]).astype(before.dtype)
    if not np.array_equal(before.reshape(-1), rate):  # setting the rate is treated as a write
        tensor.set(rate, paddle.CPUPlace())


def _key(call: dict[str, Any]) -> str:
    return key_of_call(call["program"], _scope(call), call["feed"], call["fetch_list"])


def _scope(call: dict[str, Any]) -> Scope:
    return global_scope() if call["scope"] is None else call["scope"]
