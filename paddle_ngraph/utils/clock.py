"""The clock of decisions by time: Paddle or engine, now or in the background, one thread or more.

Tests set a clock of their own, so that no decision depends on the load of the machine. Timeouts for
other processes and threads read the system's clock directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, time

Clock = Callable[[], float]

_clock: Clock = perf_counter
_date: Clock = time


def now() -> float:
    """The time in seconds since an arbitrary start."""
    return _clock()


@contextmanager
def overridden(clock: Clock) -> Iterator[None]:
    """Replaces the clock, for all threads, inside ``with``."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


def date() -> float:
    """The time in seconds since 1970, which other processes share."""
    return _date()


@contextmanager
def overridden_date(date: Clock) -> Iterator[None]:
    """Replaces the date, for all threads, inside ``with``."""
    global _date
    before, _date = _date, date
    try:
        yield
    finally:
        _date = before
