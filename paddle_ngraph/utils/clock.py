"""The clock of decisions by time: native or compiled, now or in the background, one thread or more.

Tests set one of their own, so that no decision depends on the load of the machine. Limits of waits
for other processes and threads need the system's clock, and read it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

Clock = Callable[[], float]

_clock: Clock = perf_counter


def now() -> float:
    """Seconds, from some moment on."""
    return _clock()


@contextmanager
def overridden(clock: Clock) -> Iterator[None]:
    """Inside of ``with`` it is another one, in all threads."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
