"""Counters of runs, conversions and caches, for ``paddle_ngraph.stats()``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from paddle_ngraph import _core
from paddle_ngraph.utils.fork_safe_locks import new_lock

_lock = new_lock()
_native_by_type: Counter[str] = Counter()
_converted = 0


class CacheInfo(NamedTuple):
    """Counters of the function cache, which evicts the least recently used functions."""

    hits: int
    misses: int
    maxsize: int
    currsize: int
    evictions: int


class Operator(Protocol):
    """Interface of an operator in a report that falls back to Paddle."""

    @property
    def type(self) -> str: ...


class Conversion(Protocol):
    """Interface of a report of the program pass on one program."""

    @property
    def ops_converted(self) -> int: ...

    @property
    def native(self) -> Sequence[Operator]: ...


def count(report: Conversion) -> None:
    """Adds the operators of one program that the program pass converted, and that fall back."""
    global _converted
    with _lock:
        _converted += report.ops_converted
        _native_by_type.update(op.type for op in report.native)


def stats() -> dict[str, Any]:
    """Returns counters since the start or the last :func:`reset_stats`.

    Returns:
        ``engine_runs``: runs of a function by an ``ngraph_engine`` operator; ``native_runs``: runs
        of such an operator by Paddle instead; ``runs_while_compiling``: those of them that did not
        wait for a function; ``functions_reused``: hits of the function cache;
        ``functions_loaded`` and ``functions_built``: its misses, loaded from disk and compiled;
        ``functions_built_in_background``: those of the latter that no run waited for;
        ``functions_with_weights``: misses whose functions have weights as constants;
        ``functions_with_weights_in_place``: those of them that read weights without prepacking in
        the memory of the variables;
        ``steps_in_place``: optimizer updates, and sums, that wrote to the memory of states;
        ``optimizer_steps``: optimizer updates of dynamic mode, one per parameter, that ran on all
        threads; ``clipping_loops``: norms of gradients, and multiplications with a scalar, that ran
        on all threads, too;
        ``gradients_held``: number of gradients that these read in the memory of a function (pinned
        gradients);
        ``rests_shared_out``: runs in which all threads shared the leftover chunks of a batch;
        ``ops_converted`` and ``ops_native``: compute operators of the programs rewritten;
        ``native_by_type``: the latter by operator type.
    """
    with _lock:
        return {
            **_core.engine_stats(),
            "ops_converted": _converted,
            "ops_native": sum(_native_by_type.values()),
            "native_by_type": dict(_native_by_type),
        }


def reset_stats() -> None:
    """Sets all counters of :func:`stats` and :func:`cache_info` to 0; caches keep entries."""
    global _converted
    with _lock:
        _converted = 0
        _native_by_type.clear()
        _core.reset_engine_stats()


def cache_info() -> CacheInfo:
    """Returns hits, misses, capacity, current size and evictions of the function cache."""
    return CacheInfo(**_core.cache_info())
