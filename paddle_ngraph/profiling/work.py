"""Spans of work inside runs and builds, which the core notes while a profile is measured."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from paddle_ngraph import _core
from paddle_ngraph.statistics import Event

CONVERT, COMPILE = "convert", "compile"
OTHER_OF_RUNS, OTHER_OF_BUILDS = "other work of runs", "other work of builds"
# Kinds of work inside runs, in the order of a table.
IN_RUNS = ("compute", "copies", "optimizer updates", "random numbers", "waits")


class FinishedSpan(NamedTuple):
    """Work of a thread.

    Attributes:
        work: One of ``IN_RUNS``, ``CONVERT`` or ``COMPILE``.
        thread: The number of the thread, as in events.
        start_ns: The beginning, on the clock of ``time.monotonic_ns()``.
        ns: The duration.
    """

    work: str
    thread: int
    start_ns: int
    ns: int


def take() -> list[FinishedSpan]:
    """Returns the spans since the last call, and forgets them."""
    return [FinishedSpan(*row) for row in _core.take_work_spans()]


class SpansOfRuns:
    """Spans, and builds, by the run of the engine in which they are.

    Args:
        events: The events of the profile.
        spans: The spans.
    """

    def __init__(self, events: Sequence[Event], spans: Sequence[FinishedSpan]) -> None:
        self._runs: dict[int, list[Event]] = {}
        for event in sorted(events, key=lambda event: event.start_ns):
            if event.outcome == "engine":
                self._runs.setdefault(event.thread, []).append(event)
        self._inside: dict[int, Counter[str]] = {}
        built = [FinishedSpan("builds", e.thread, e.start_ns, e.ns) for e in events if _is_build(e)]
        for span in [*spans, *built]:
            run = self._run_around(span)
            if run is not None and span.work in (*IN_RUNS, "builds"):
                self._inside.setdefault(run.number, Counter())[span.work] += span.ns

    def _run_around(self, span: FinishedSpan) -> Event | None:
        """The run in which most of a span is: the clocks of both differ by microseconds."""
        runs, middle = self._runs.get(span.thread, []), span.start_ns + span.ns // 2
        at = bisect_right(runs, middle, key=lambda run: run.start_ns) - 1
        return runs[at] if at >= 0 and middle <= runs[at].start_ns + runs[at].ns else None

    def of(self, runs: Sequence[Event]) -> dict[str, int]:
        """Nanoseconds of these runs by kind of work; their builds are left out."""
        total = Counter[str](dict.fromkeys(IN_RUNS, 0))
        for run in runs:
            total.update(self._inside.get(run.number, Counter()))
        inside = sum(total.values())
        del total["builds"]
        total[OTHER_OF_RUNS] = max(0, sum(run.ns for run in runs) - inside)
        return dict(total)


def of_builds(events: Sequence[Event], spans: Sequence[FinishedSpan]) -> dict[str, int]:
    """Nanoseconds of builds by kind of work: in runs, and in the background."""
    total = Counter[str]({CONVERT: 0, COMPILE: 0})
    for span in spans:
        if span.work in total:
            total[span.work] += span.ns
    builds = sum(event.ns for event in events if _is_build(event))
    total[OTHER_OF_BUILDS] = max(0, builds - sum(total.values()))
    return dict(total)


def _is_build(event: Event) -> bool:
    return event.outcome == "function"
