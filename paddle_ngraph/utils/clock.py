"""The clock of decisions by time: Paddle or engine, now or in the background, one thread or more.

Tests set a clock of their own, so that no decision depends on the load of the machine. Timeouts for
other processes and threads read the system's clock directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, time

from paddle_ngraph.utils import signals

Clock = Callable[[], float]
# The processor time of the calling thread, its time in the queue for a processor, and its turns.
_QUEUE_REPORT = "/proc/thread-self/schedstat"


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


def own_time() -> float:
    """The time, without what this thread has waited for a processor that other threads had.

    A difference of two times is the processor time of the thread and what it has waited for: the
    threads that compute with it. Equal to :func:`now` where the system does not tell.
    """
    time = _time.clock()
    return time - _seconds_in_queue() if _time.clock is perf_counter else time


def _seconds_in_queue() -> float:
    """Seconds that this thread was ready to run, and has not run (Linux)."""
    with signals.own_errors():
        try:
            with open(_QUEUE_REPORT, "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def date() -> float:
    """The time in seconds since 1970, which other processes share."""
    return _date.clock()
