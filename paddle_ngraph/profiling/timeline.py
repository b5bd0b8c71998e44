"""Timelines in the trace event format, which Perfetto and ``chrome://tracing`` open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paddle_ngraph.errors import printable


@dataclass(frozen=True)
class TimelineSpan:
    """Something that a thread does.

    Attributes:
        name, kind: Its name, and a category by which viewers filter.
        row: The number of the thread.
        start_ns, ns: The beginning and the duration.
        details: Names and texts that a viewer shows when it is selected.
    """

    name: str
    kind: str
    row: int
    start_ns: float
    ns: float
    details: dict[str, str] = field(default_factory=dict)


def trace(groups: Sequence[tuple[str, Sequence[TimelineSpan]]]) -> str:
    """Returns a timeline as JSON.

    Args:
        groups: Names, and spans on one clock, which begins with the first span.
    """
    events: list[dict[str, Any]] = []
    begin = min((span.start_ns for _, spans in groups for span in spans), default=0.0)
    for number, (name, spans) in enumerate(groups, 1):
        events.append(_metadata("process_name", number, 0, name))
        for row in sorted({span.row for span in spans}):
            events.append(_metadata("thread_name", number, row, f"thread {row}"))
        events += [_event(span, number, begin) for span in _nested(spans)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(span: TimelineSpan, process: int, begin: float) -> dict[str, Any]:
    """A complete event, in microseconds."""
    return {
        "name": printable(span.name),
        "cat": span.kind,
        "ph": "X",
        "pid": process,
        "tid": span.row,
        "ts": (span.start_ns - begin) / 1e3,
        "dur": span.ns / 1e3,
        "args": {name: printable(text) for name, text in span.details.items()},
    }


def _nested(spans: Sequence[TimelineSpan]) -> Iterator[TimelineSpan]:
    """Spans in order, which end with the span around: clocks differ by some nanoseconds.

    Viewers take a span that ends after the one around for an error.
    """
    open_until: dict[int, list[float]] = {}
    for span in sorted(spans, key=lambda span: (span.row, span.start_ns, -span.ns)):
        ends = open_until.setdefault(span.row, [])
        while ends and ends[-1] <= span.start_ns:
            ends.pop()
        end = min([span.start_ns + span.ns, *ends[-1:]])
        ends.append(end)
        yield replace(span, ns=end - span.start_ns)
