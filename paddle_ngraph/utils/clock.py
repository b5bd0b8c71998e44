"""The clock of decisions by time: Paddle or engine, now or in the background, one thread or more.

Tests set a clock of their own, so that no decision depends on the load of the machine. Timeouts for
other processes and threads read the system's clock directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, time

Clock = Callable[[], float]


class _ReplaceableClock:
    """A clock that a test can replace, for all threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @contextmanager
    def overridden(self, clock: Clock) -> Iterator[None]:
        """Replaces the clock inside ``with``."""
        before, self.clock = self.clock, clock
        try:
            yield
        finally:
            self.clock = before


_time, _date = _ReplaceableClock(perf_counter), _ReplaceableClock(time)
overridden = _time.overridden
overridden_date = _date.overridden


def now() -> float:
    """The time in seconds since an arbitrary start."""
    return _time.clock()


def date() -> float:
    """The time in seconds since 1970, which other processes share."""
    return _date.clock()
