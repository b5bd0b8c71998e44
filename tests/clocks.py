"""A clock that a test advances."""

from __future__ import annotations


class Clock:
    """A clock with a time set by the test.

    Args:
        tick: The seconds that each reading adds.

    Attributes:
        now: The time it shows.
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.advance(self.tick)
        return self.now

    def advance(self, seconds: float) -> None:
        """Advances the time by ``seconds``."""
        self.now += seconds
