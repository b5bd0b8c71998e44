"""One run of ``Executor.run``, from its call through Paddle's code to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paddle_ngraph import flags


class Repeatable(Protocol):
    """Interface of an executor that can repeat its last run without Paddle's preparation."""

    def is_repeatable(self, is_on: bool) -> bool:
        """Whether :meth:`repeat` may repeat the last run, with this value of the flag."""

    def repeat(
        self, feed: dict[str, Any], prepare: Callable[[], None], is_on: bool
    ) -> list[np.ndarray] | None:
        """Repeats the last run on other feeds; ``None`` if that was impossible, and nothing ran."""


@dataclass
class Run:
    """The arguments of a run, and what Paddle's code found for it.

    Attributes:
        is_on: ``FLAGS_use_ngraph`` when ``Executor.run`` was called: another thread may change the
            flag during the run.
        is_profiled: Whether Paddle profiles the schedule of its jobs.
        feed_names: The names of the feeds.
        prepared: The program that Paddle prepared; ``None`` before it is fed.
        switch: The executor that ran the program; ``None`` before the end of the run.
        native_reason: Number of the reason for the event if Paddle runs the program as a whole
            although the flag is on.
    """

    is_on: bool
    is_profiled: bool
    feed_names: Sequence[str] = ()
    prepared: Any = None
    switch: Repeatable | None = None
    native_reason: int | None = None


def of_argument(argument: Run | bool) -> Run:
    """The run that an executor was passed as the argument ``enable_job_schedule_profiler``.

    Args:
        argument: The run; or Paddle's own argument, where no view of the executor carried a run.
    """
    if isinstance(argument, Run):
        return argument
    return Run(bool(flags.get("use_ngraph")), argument)
