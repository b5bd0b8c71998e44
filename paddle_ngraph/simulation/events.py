"""Discrete-event simulation of dependent tasks that share resources.

The scheduling policy is that of the data-dependency engine (``plan/data_dependency_engine.py``):
whenever a task ends, the first pending tasks start whose predecessors have ended and for which all
resources of one group are free. A task acquires its resources at once, and holds them to its end.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from paddle_ngraph.errors import NgraphError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Task:
    """A task of the simulation.

    Attributes:
        ms: Duration in milliseconds.
        after: The keys of its predecessors.
        groups: Groups of resources; the task takes the first group that is free.
    """

    ms: float
    after: Sequence[Hashable]
    groups: Sequence[frozenset[Hashable]]


class Span(NamedTuple):
    """Start and end of a task in milliseconds, and the resources that it held."""

    start: float
    end: float
    group: frozenset[Hashable]


def simulate(tasks: Mapping[Key, Task]) -> dict[Key, Span]:
    """Simulates tasks.

    Args:
        tasks: Tasks by key. The first of several ready tasks has priority.

    Returns:
        The spans of the tasks, in the order of their starts.

    Raises:
        NgraphError: The dependencies have a cycle, or refer to a task that does not exist.
    """
    keys = list(tasks)
    followers = defaultdict[Hashable, list[int]](list)
    for index, task in enumerate(tasks.values()):
        for before in set(task.after):
            followers[before].append(index)
    missing = [len(set(task.after)) for task in tasks.values()]
    ready = [index for index, count in enumerate(missing) if not count]
    running, spans = set[Key](), dict[Key, Span]()
    now = 0.0
    while ready or running:
        for index in list(ready):
            key = keys[index]
            busy = frozenset().union(*(spans[other].group for other in running))
            group = next((each for each in tasks[key].groups if busy.isdisjoint(each)), None)
            if group is not None:
                spans[key] = Span(now, now + tasks[key].ms, group)
                ready.remove(index)
                running.add(key)
        now = min(spans[key].end for key in running)
        ended = {key for key in running if spans[key].end <= now}
        running -= ended
        for follower in (each for key in ended for each in followers[key]):
            missing[follower] -= 1
            if not missing[follower]:
                insort(ready, follower)
    if len(spans) < len(tasks):
        names = ", ".join(str(key) for key in tasks if key not in spans)
        raise NgraphError(f"these tasks wait for each other, or for what is not there: {names}")
    return spans


def total_ms(tasks: Mapping[Key, Task]) -> float:
    """The milliseconds from the start of the simulated tasks to the end of the last one."""
    return max((span.end for span in simulate(tasks).values()), default=0.0)
