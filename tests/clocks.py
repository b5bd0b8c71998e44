"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """The time that a test says it is.

    Args:
        tick: The seconds that pass with each look.

    Attributes:
        now: What it shows.
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.advance(self.tick)
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets so much time pass."""
        self.now += seconds
