"""Clocks that a test advances."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from paddle_ngraph.frontends.dynamic.lazy.capture import TraceCache


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


class RandomClock(Clock):
    """A clock that advances by a random time at each reading, in any thread."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance, self._lock = random.Random(seed), threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            self.advance(self._chance.choice([0.0, 1e-5, 1e-3, 0.05, 0.5]))
            return self.now


class TunerClock(Clock):
    """A clock by which native and captured calls of tuned functions take set times.

    Args:
        monkeypatch: Patches the calls, as long as the fixture lives.
        captured: The seconds of a captured call; those of a native one are 1.

    Attributes:
        captured, native: The seconds of the calls that follow.
    """

    def __init__(self, monkeypatch: Any, captured: float) -> None:
        super().__init__(tick=1e-6)
        self.captured, self.native = captured, 1.0
        native = self._taking(TraceCache.run_natively, lambda: self.native)
        monkeypatch.setattr(TraceCache, "run_natively", native)
        run = self._taking(TraceCache.run, lambda: self.captured)
        monkeypatch.setattr(TraceCache, "run", run)

    def _taking(self, original: Callable[..., Any], seconds: Callable[[], float]) -> Any:
        def run(*args: Any) -> Any:
            self.advance(seconds())
            return original(*args)

        return run
