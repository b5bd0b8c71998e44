"""Tasks that wait for each other and share resources, played through in time.

The policy is that of the data-dependency engine (``plan/data_dependency_engine.py``): whenever
something ends, the first of the waiting tasks starts that waits for nothing else and finds all
resources of one of its groups free. A task takes its resources at once, and keeps them to its end.
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
    """Something that takes time.

    Attributes:
        ms: How long, in milliseconds.
        after: The keys of the tasks that have to end before.
        groups: Groups of resources; it takes one of them, the first that is free.
    """

    ms: float
    after: Sequence[Hashable]
    groups: Sequence[frozenset[Hashable]]


class Span(NamedTuple):
    """When a task starts and ends, in milliseconds, and the resources that it has meanwhile."""

    start: float
    end: float
    group: frozenset[Hashable]


def simulate(tasks: Mapping[Key, Task]) -> dict[Key, Span]:
    """Plays tasks through.

    Args:
        tasks: By key. Of several that could start, the first one does.

    Returns:
        Their spans, in the order in which they start.

    Raises:
        NgraphError: Tasks wait for each other in a circle, or for one that is not there.
    """
    keys = list(tasks)
    followers = defaultdict[Hashable, list[int]](list)
    for number, task in enumerate(tasks.values()):
        for before in set(task.after):
            followers[before].append(number)
    missing = [len(set(task.after)) for task in tasks.values()]
    ready = [number for number, count in enumerate(missing) if not count]
    running, spans = set[Key](), dict[Key, Span]()
    now = 0.0
    while ready or running:
        for number in list(ready):
            key = keys[number]
            busy = frozenset().union(*(spans[other].group for other in running))
            group = next((each for each in tasks[key].groups if busy.isdisjoint(each)), None)
            if group is not None:
                spans[key] = Span(now, now + tasks[key].ms, group)
                ready.remove(number)
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
    """When the last task ends, in milliseconds."""
    return max((span.end for span in simulate(tasks).values()), default=0.0)
