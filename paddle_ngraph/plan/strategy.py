"""The strategy of programs with a plan: engine operators on several devices run concurrently."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from paddle_ngraph.frontends import dispatcher
from paddle_ngraph.paddle_private.protocols import Program, Scope
from paddle_ngraph.partitioning.analysis.block_view import nodes_of
from paddle_ngraph.plan import data_dependency_engine, data_parallel
from paddle_ngraph.plan.data_dependency_engine import PlannedProgram, Schedule


def install() -> None:
    """Registers the strategy of execution plans with the dispatcher, once."""
    dispatcher.register(find)


def find(programs: Sequence[Program], may_schedule: bool) -> PlannedStrategy | None:
    """The strategy for the rewritten programs of an executor.

    Args:
        programs: PIR programs after the program pass.
        may_schedule: Whether a run is a single run of a single program, whose operators may run in
            any order that their dependencies allow.

    Returns:
        ``None`` if no program has several engine operators.
    """
    partitioned = [each for each in programs if sum(n.is_engine for n in nodes_of(each)) > 1]
    if not partitioned:
        return None
    schedule = data_dependency_engine.schedule_of(programs[0]) if may_schedule else None
    return PlannedStrategy(schedule, map(data_parallel.feeds_in_slices, partitioned))


class PlannedStrategy:
    """The strategy for the rewritten programs of an executor. See :func:`find`.

    Args:
        schedule: The device schedule, if the programs are one program that has one.
        slices: The number of slices, and the names of the feeds that are divided.
    """

    def __init__(self, schedule: Schedule | None, slices: Iterable[tuple[int, list[str]]]) -> None:
        self._schedule = schedule
        self._slices = [(count, names) for count, names in slices if names]

    def check_feeds(self, shape_of: Callable[[str], Sequence[int]]) -> None:
        """Raises an error for a batch that does not divide into slices.

        Paddle would reject such a batch too, in the middle of the run and with a message of its
        own.

        Args:
            shape_of: Returns the shape of the feed of a name; empty if unknown.
        """
        for count, names in self._slices:
            for name in names:
                if shape := shape_of(name):
                    data_parallel.check_divisible(name, shape[0], count, "slices")

    def bind(self, scope: Scope) -> PlannedProgram | None:
        """The program, bound to the variables of a scope; ``None`` if a variable does not exist.

        ``None`` without a device schedule, too.
        """
        schedule = self._schedule
        if schedule is None or any(scope.find_var(n) is None for n in schedule.sources.values()):
            return None
        return PlannedProgram(schedule, scope)
