"""Counters and events of runs, conversions and caches: ``paddle_ngraph.stats()`` and ``events()``.

The core records an event for each run, and adds up all of them by reason (core/engine/events.h).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from paddle_ngraph import _core
from paddle_ngraph.run_counters import Stats
from paddle_ngraph.utils.fork_safe_locks import new_lock

_lock = new_lock()
_native_by_type: Counter[str] = Counter()
_converted = 0


class Reason(NamedTuple):
    """The reason of an event, from the table of the core.

    Attributes:
        name: The name.
        outcome: ``engine``, ``native``, ``raised``, or ``function`` for an event that is no run.
        is_of_subgraph: Whether it concerns a subgraph, not a program, layer or trace as a whole.
        sentence: The reason in words, for reports.
    """

    name: str
    outcome: str
    is_of_subgraph: bool
    sentence: str


REASONS = [Reason(*row) for row in _core.reasons]
# The number of events that the core keeps.
MAX_EVENTS = 1 << 16


class Event(NamedTuple):
    """A run of a subgraph or program, or a function that was built or loaded.

    Attributes:
        number: Number of the event in the process, from 0.
        thread: Number of the thread; a thread that begins may get that of one that has ended.
        subgraph: Id of the subgraph, which its graph string determines; or of the program, layer or
            traces that Paddle ran as a whole, or 0.
        outcome: ``engine``, ``native``, ``raised``, or ``function`` for an event that is no run.
        reason: The name of the reason, as in ``stats()["native"]``.
        start_ns: The beginning, in nanoseconds on the clock of ``time.monotonic_ns()``.
        ns: The duration in nanoseconds.
    """

    number: int
    thread: int
    subgraph: int
    outcome: str
    reason: str
    start_ns: int
    ns: int


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

    @property
    def kernel_calls(self) -> list[str]: ...


def count(report: Conversion) -> None:
    """Adds the operators of one program that the program pass converted, and that fall back."""
    global _converted
    with _lock:
        _converted += report.ops_converted
        _native_by_type.update([*(op.type for op in report.native), *report.kernel_calls])


def stats() -> Stats:
    """Returns counters since the start or the last :func:`reset_stats`.

    A forked process continues those of its parent. Runs with ``FLAGS_use_ngraph`` off are not
    counted, and a run that needs no engine operator counts once, as a whole.
    """
    events, quantities = _core.totals()
    native, raised = _by_reason(events, "native"), _by_reason(events, "raised")
    with _lock:
        return {
            "engine_runs": events["engine"],
            "native_runs": _native_runs(events),
            "runs_while_compiling": events["compiling"],
            "functions_built": events["built"] + events["built_in_background"],
            "functions_built_in_background": events["built_in_background"],
            "functions_loaded": events["loaded"],
            **quantities,  # type: ignore[typeddict-item]
            "ops_converted": _converted,
            "ops_native": sum(_native_by_type.values()),
            "native_by_type": dict(_native_by_type),
            "runs": events["engine"] + sum(native.values()) + sum(raised.values()),
            "native": native,
            "raised": raised,
        }


def native_runs() -> int:
    """Number of runs of subgraphs by Paddle, as in :func:`stats`."""
    events, _ = _core.totals()
    return _native_runs(events)


def _native_runs(events: dict[str, int]) -> int:
    native = (each for each in REASONS if each.outcome == "native" and each.is_of_subgraph)
    return sum(events[each.name] for each in native)


def _by_reason(events: dict[str, int], outcome: str) -> dict[str, int]:
    """The numbers of runs with this outcome, by the reasons that have occurred."""
    names = (each.name for each in REASONS if each.outcome == outcome)
    return {name: events[name] for name in names if events[name] > 0}


def events(limit: int = MAX_EVENTS) -> list[Event]:
    """Returns the last events since the last :func:`reset_stats`, oldest first.

    Args:
        limit: The largest number of events to return; the core keeps the last 65,536.
    """
    return [
        Event(number, thread, subgraph, REASONS[reason].outcome, REASONS[reason].name, start, ns)
        for number, thread, subgraph, reason, start, ns in _core.events(limit)
    ]


def reset_stats() -> None:
    """Sets the counters of :func:`stats` and :func:`cache_info` to 0, and forgets all events.

    Caches keep their entries.
    """
    global _converted
    with _lock:
        _converted = 0
        _native_by_type.clear()
        _core.reset_totals()


def cache_info() -> CacheInfo:
    """Returns hits, misses, capacity, current size and evictions of the function cache."""
    return CacheInfo(**_core.cache_info())
