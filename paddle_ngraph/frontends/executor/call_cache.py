"""Call cache of ``Executor.run``: a call that repeats an earlier one runs the engine directly.

Paddle prepares every run from scratch: Executor lists the operators of the program to see whether
there are any, looks its executor up, checks the feeds and copies them, and copies the fetched
results. That takes half a millisecond, longer than small networks run. None of it is needed where
the program runs without Paddle's interpreter and an equal call ran before. Feeds are then read in
place, so they must not be written before the run is over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.pir import Program, Value
from paddle.static import Variable, global_scope

from paddle_ngraph import _core, flags
from paddle_ngraph.frontends.executor import interpreter
from paddle_ngraph.frontends.executor.program_key import is_ours, key_of_call
from paddle_ngraph.frontends.executor.run import Repeatable, Run
from paddle_ngraph.paddle_private import replaced
from paddle_ngraph.paddle_private.executor_view import ExecutorView
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
    tensor_of_array,
    text_hash_of,
    variable_tensor,
)
from paddle_ngraph.paddle_private.protocols import Scope
from paddle_ngraph.utils.lru_cache import LRUCache, cache_of_each

# The name of the attribute in which an ``Executor`` has its ``_CallCache``.
_CACHE_ATTRIBUTE = "_ngraph_known_calls"
_CALLS = cache_of_each(
    "`Executor`",
    __name__,
    "calls",
    "calls and their executors",
    key="Paddle's own key of the call",
    bound=8,  # number of executors that Paddle caches for each `Executor`
)


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
        """Whether ``call`` certainly has the key of this cached call."""
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
        """Returns the entry that was cached for a call with equal arguments; else ``None``."""
        last = self._last
        if last is not None and last.is_repeated_by(call):
            return last
        if not len(self) or not _is_cacheable(call):
            return None
        # The local variable is returned, since another thread may set ``self._last`` in between.
        self._last = found = self.get(_key(call))
        return found

    def remember(self, call: dict[str, Any], cached: _CachedCall) -> None:
        """Caches the executor of a call, and makes it the last one."""
        self._last = self.put(_key(call), cached)


def install() -> None:
    """Patches ``paddle.static.Executor.run`` to use the call cache of the ``Executor``."""
    replaced.RUN_PIR.replace(_with_call_cache)
    replaced.RUN_LEGACY.replace(_with_call_cache)


def _with_call_cache(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def run(self: Any, *args: Any, **call: Any) -> Any:
        is_on = bool(flags.get("use_ngraph"))
        if args or not is_ours(call["program"], is_on) or not _is_plain(self, call):
            if not is_on and isinstance(call.get("program"), Program):
                # The view of the executor (_Preparation) would take 5 % of a small run by Paddle.
                # The switch reads the flag instead: the feeds of a PIR program have one format,
                # whatever the flag.
                return original(self, *args, **call)
            return _prepared_run(original, self, _run_of(self, is_on), args, call)
        # The call cache is strategy 1 of frontends/dispatcher.py, inlined since a cached call takes
        # 7 us.
        calls = attached_to(self, _CACHE_ATTRIBUTE, _CallCache)
        cached = calls.find(call)
        if cached is not None:
            set_rate = partial(_set_learning_rate, cached.prepared, call)
            results = cached.switch.repeat(call["feed"], set_rate, is_on)
            if results is not None:
                return results
        is_cacheable, this_run = _is_cacheable(call), _run_of(self, is_on)
        results = _prepared_run(original, self, this_run, args, call)
        if is_cacheable and (switch := this_run.switch) and switch.is_repeatable(is_on):
            calls.remember(call, _cached_call(switch, this_run.prepared, call))
        return results

    return run


def _run_of(executor: Any, is_on: bool) -> Run:
    return Run(is_on, executor.enable_job_schedule_profiler)


def _prepared_run(
    original: Callable[..., Any], executor: Any, run: Run, args: Any, call: dict[str, Any]
) -> Any:
    """Calls Paddle's ``Executor.run``, which prepares the program; ``run`` records its switch."""
    # Only runs on the CPU can go through the engine.
    is_cpu = executor.place.is_cpu_place()
    return original(_Preparation(executor, run) if is_cpu else executor, *args, **call)


class _Preparation(ExecutorView[Run]):
    """Stands for an ``Executor`` while Paddle's ``Executor.run`` prepares a run."""

    def feed_legacy(self, program: Any, feed: Any, feed_var_name: str, scope: Scope) -> None:
        """Feeds both formats: a ProgramDesc program reads a list, a PIR program reads by name.

        The switch may translate a ProgramDesc program to PIR, so it needs both.
        """
        if self.request.is_on:
            feed = {name: _as_tensor(value, self.viewed.place) for name, value in feed.items()}
            with interpreter.PIR_IN_EXECUTOR:
                super().feed_legacy(program, feed, feed_var_name, scope)
        with interpreter.PIR_IN_EXECUTOR_AS_SET:
            super().feed_legacy(program, feed, feed_var_name, scope)


def _as_tensor(value: Any, place: Any) -> Any:
    return tensor_of_array(value, place) if isinstance(value, np.ndarray) else value


def _cached_call(switch: Repeatable, prepared: Any, call: dict[str, Any]) -> _CachedCall:
    program = call["program"]
    feeds, fetches = tuple(call["feed"]), tuple(call["fetch_list"])
    is_unchanged = _is_unchanged(program, fetches)
    return _CachedCall(switch, prepared, program, is_unchanged, _scope(call), feeds, fetches)


def _is_unchanged(program: Any, fetches: tuple[Any, ...]) -> Callable[[], bool]:
    """Returns a function without arguments that checks whether a cached call is still valid.

    The function compares ``program`` and the names of ``fetches`` with those at its creation.

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
    """Whether a call runs a program without graph or pipeline, and fetches variables of it."""
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
        return  # the variable of the learning rate has no value: the run reports that
    before = np.asarray(tensor)
    rate = np.array([scheduler()]).astype(before.dtype)
    # Sets a rate only if it has changed: setting it counts as a write of weights.
    if not np.array_equal(before.reshape(-1), rate):
        tensor.set(rate, paddle.CPUPlace())


def _key(call: dict[str, Any]) -> str:
    return key_of_call(call["program"], _scope(call), call["feed"], call["fetch_list"])


def _scope(call: dict[str, Any]) -> Scope:
    return global_scope() if call["scope"] is None else call["scope"]
