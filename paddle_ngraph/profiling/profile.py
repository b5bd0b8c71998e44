"""``paddle_ngraph.profile()``: the time of a block of code, by subgraph, node and operator."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from paddle_ngraph import _core, statistics
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.partitioning import operator_lines
from paddle_ngraph.profiling import node_times, operator_calls, recorded_inputs
from paddle_ngraph.profiling.node_times import FunctionTimes, NodeTime
from paddle_ngraph.profiling.operator_calls import OperatorCall
from paddle_ngraph.statistics import Event
from paddle_ngraph.utils import signals

_ROWS = 30
_ENGINE, _PADDLE, _BUILD = "engine", "Paddle's operators", "functions"


@dataclass(frozen=True)
class SubgraphProfile:
    """A subgraph that the engine ran in the block.

    Attributes:
        number: Its number in the profile, from 1.
        graph: The graph.
        lines: Lines of user code by index of operator, as far as they are known.
        runs: The runs of its functions.
        function: The nodes of the function that was compiled for the profile.
    """

    number: int
    graph: Graph
    lines: Mapping[int, str]
    runs: Sequence[Event]
    function: FunctionTimes

    @property
    def ns(self) -> int:
        """The total time of the runs."""
        return sum(run.ns for run in self.runs)

    def operators(self, node: NodeTime) -> list[tuple[str, str]]:
        """Type and line of the operators that a node computes."""
        found = [self._ops[each] for each in node.operators if each in self._ops]
        return [(op.type.removeprefix("pd_op."), self.lines.get(op.index, "")) for op in found]

    @cached_property
    def _ops(self) -> dict[int, Op]:
        self.graph.set_op_ids()
        return {op.id: op for op in self.graph.all_ops()}


class TimeProfile:
    """The times of a ``with`` block, complete at its end.

    Attributes:
        ns: The duration of the block.
        subgraphs: The subgraphs that the engine ran.
        events: The events of the block: see :func:`paddle_ngraph.events`.
        calls: The calls of Paddle's operators: between subgraphs, and in runs by Paddle alone.
        why_no_calls: Why these were not measured, if they were not.
    """

    def __init__(self, nodes: bool = True) -> None:
        self.ns = 0
        self.subgraphs: list[SubgraphProfile] = []
        self.events: list[Event] = []
        self.calls: list[OperatorCall] = []
        self.why_no_calls = ""
        self._measures_nodes = nodes
        self._stack = ExitStack()

    def __enter__(self) -> TimeProfile:
        with ExitStack() as stack:
            self._given = stack.enter_context(recorded_inputs.recording())
            self._profiler = operator_calls.new_profiler()
            if self._profiler is not None:
                stack.enter_context(self._profiler)
            self._stack = stack.pop_all()
        self._begin_ns = time.monotonic_ns()
        # The lead of the clock of Paddle's profiler over that of events.
        self._clock_ns = time.time_ns() - self._begin_ns
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.ns = time.monotonic_ns() - self._begin_ns
        self._stack.close()
        self.events = [e for e in statistics.events() if e.start_ns >= self._begin_ns]
        if self._profiler is None:
            self.why_no_calls = "not measured, since the process has another paddle.profiler"
        else:
            self.calls = operator_calls.calls_of(self._profiler)
            self._profiler = None  # Paddle creates no other while it exists
        if kind is None:
            self.subgraphs = list(self._subgraphs())
        self._given = {}

    def _subgraphs(self) -> Iterator[SubgraphProfile]:
        runs: dict[int, list[Event]] = {}
        for event in self.events:
            if event.outcome == "engine":
                runs.setdefault(event.subgraph, []).append(event)
        ids = {text: subgraph for subgraph, text in _core.engine_graphs(set(runs))}
        for number, (text, given) in enumerate(self._given.items(), 1):
            yield SubgraphProfile(
                number,
                Graph.from_string(text),
                operator_lines.of(text),
                runs.get(ids.get(text, 0), []),
                self._function(text, given),
            )

    def _function(self, text: str, given: Sequence[Any]) -> FunctionTimes:
        if not self._measures_nodes:
            return FunctionTimes(why_unmeasured="profile(nodes=False)")
        with signals.own_errors():
            try:
                return node_times.measure(text, given)
            except Exception as error:  # the user's code has run, and its other times are known
                return FunctionTimes(why_unmeasured=f"{type(error).__name__}: {error}")

    # -- the report -------------------------------------------------------------------------------

    @property
    def totals(self) -> dict[str, int]:
        """Nanoseconds by kind of work: of all threads, so that their sum may exceed the block's.

        ``engine`` is the time of runs of functions, of which ``kernels of Paddle in functions`` is
        not taken off. ``functions`` is the time of builds, for which runs may have waited.
        """
        totals = {_ENGINE: 0, _PADDLE: sum(call.ns for call in self.calls), _BUILD: 0}
        for event in self.events:
            if event.outcome == "engine":
                totals[_ENGINE] += event.ns
            elif event.outcome == "function":
                totals[_BUILD] += event.ns
        return totals

    def table(self, rows: int = _ROWS) -> str:
        """Returns the profile as text.

        It has the totals, and for each subgraph its slowest nodes, with Paddle's operators and the
        lines that created them, and their operations and bytes per second beside the measured peak
        of the machine; then the calls of Paddle's operators by type.

        Args:
            rows: The largest number of nodes, and of types.
        """
        lines = [f"{_ms(self.ns)} in the block, of all threads:"]
        lines += [f"  {_ms(ns):>12}  {name}" for name, ns in self.totals.items()]
        native = Counter(e.reason for e in self.events if e.outcome in ("native", "raised"))
        lines += [f"  {count} native runs: {reason}" for reason, count in native.most_common()]
        for subgraph in self.subgraphs:
            lines += _subgraph_lines(subgraph, rows)
        if self.calls or self.why_no_calls:
            lines += ["", f"Paddle's operators: {self.why_no_calls}".rstrip()]
            for type, count, ns in list(operator_calls.by_type(self.calls))[:rows]:
                where = ", ".join(operator_lines.of_native(type))
                lines.append(f"  {_ms(ns):>12}  {type} x{count}  {where}".rstrip())
        return printable("\n".join(lines))

    def __str__(self) -> str:
        return self.table()

    # -- files ------------------------------------------------------------------------------------

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline of the block as JSON, for Perfetto or ``chrome://tracing``.

        Rows are the threads of runs of the engine and, as Paddle's profiler numbers them, those of
        Paddle's operators. Nodes of functions are no part of it, since normal runs do not count
        their times.

        Raises:
            NgraphError: The file cannot be written.
        """
        names = {s.runs[0].subgraph: f"subgraph {s.number}" for s in self.subgraphs if s.runs}
        spans = [
            _span(
                f"{names.get(event.subgraph, 'program')}: {event.reason}",
                event.outcome,
                (_ENGINE_PROCESS, event.thread),
                event.start_ns - self._begin_ns,
                event.ns,
            )
            for event in self.events
        ]
        for call in self.calls:
            start = call.start_ns - self._clock_ns - self._begin_ns
            spans.append(_span(call.type, "paddle", (_PADDLE_PROCESS, call.thread), start, call.ns))
        processes = {_ENGINE_PROCESS: "paddle-ngraph", _PADDLE_PROCESS: "Paddle's operators"}
        metadata = [
            {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in processes.items()
        ]
        spans.sort(key=lambda span: span["ts"])
        _write(path, json.dumps({"traceEvents": [*metadata, *spans], "displayTimeUnit": "ms"}))

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture as SVG: the slowest nodes of all subgraphs, and Paddle's operators.

        Raises:
            NgraphError: The file cannot be written.
        """
        bars = [
            (
                f"{s.number}: {_names(s.operators(node)) or node.type}",
                node.ns * len(s.runs),
                "engine",
            )
            for s in self.subgraphs
            for node in s.function.nodes
        ]
        bars += [(type, ns, "native") for type, _, ns in operator_calls.by_type(self.calls)]
        bars.sort(key=lambda bar: -bar[1])
        _write(path, _svg(f"{_ms(self.ns)}: the slowest nodes and operators", bars[:_ROWS]))


_ENGINE_PROCESS, _PADDLE_PROCESS = 1, 2


def _span(name: str, kind: str, row: tuple[int, int], start: float, ns: float) -> dict[str, Any]:
    """A complete event of the trace event format, in microseconds."""
    pid, tid = row
    span = {"name": name, "cat": kind, "ph": "X", "pid": pid, "tid": tid}
    return {**span, "ts": start / 1e3, "dur": ns / 1e3}


def _subgraph_lines(subgraph: SubgraphProfile, rows: int) -> Iterator[str]:
    function, runs = subgraph.function, len(subgraph.runs)
    count = len(subgraph.graph.ops)
    yield ""
    yield f"subgraph {subgraph.number}: {count} operators, {runs} runs in {_ms(subgraph.ns)}"
    if function.why_unmeasured:
        yield f"  nodes not measured: {function.why_unmeasured}"
    if not function.nodes:
        return
    total = sum(node.ns for node in function.nodes)
    peak = node_times.peak()
    yield (
        f"  a function compiled for the profile, which no cache gets: converted in "
        f"{_ms(function.convert_ns)}, compiled in {_ms(function.compile_ns)}; its nodes take "
        f"{_ms(total)} in a run"
    )
    yield (
        f"  measured peak: {peak.flops_per_ns:.1f} GFLOP/s, and {peak.bytes_per_ns:.1f} GB/s from "
        "memory (caches reach more)\n"
        f"  {'ms':>9} {'share':>6} {'GFLOP/s':>14} {'GB/s':>12}  operators, node"
    )
    for node in function.nodes[:rows]:
        yield _node_line(subgraph, node, total, peak)


def _node_line(
    subgraph: SubgraphProfile, node: NodeTime, total: float, peak: node_times.Peak
) -> str:
    operators = subgraph.operators(node)
    lines = list(dict.fromkeys(line for _, line in operators if line))
    flops, num_bytes = node.num_flops / node.ns, node.num_bytes / node.ns
    arithmetic = f"{flops:8.1f} {flops / peak.flops_per_ns:5.0%}" if node.num_flops else " " * 14
    speeds = f"{arithmetic} {num_bytes:6.1f} {num_bytes / peak.bytes_per_ns:5.0%}"
    return (
        f"  {node.ns / 1e6:9.3f} {node.ns / total:6.1%} {speeds}  {_names(operators) or '?'}, "
        f"{node.type} {node.kernel} {node.shape}  {', '.join(lines[:2])}"
    ).rstrip()


def _names(operators: Sequence[tuple[str, str]]) -> str:
    return " + ".join(type for type, _ in operators[:4]) + (" ..." if len(operators) > 4 else "")


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"


def _write(path: str | os.PathLike[str], text: str) -> None:
    with signals.own_errors():
        try:
            Path(path).write_text(text, "utf-8")
        except OSError as error:
            raise NgraphError(f"{os.fspath(path)}: {error.strerror}") from error


def _svg(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    longest = max((ns for _, ns, _ in bars), default=1.0) or 1.0
    height = 60 + 22 * len(bars)
    colours = {"engine": "#2f6fd0", "native": "#c96a12"}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="900" height="{height}" fill="white"/>',
        f'<text x="20" y="28" font-size="15">{escape(printable(title))}</text>',
    ]
    for row, (name, ns, kind) in enumerate(bars):
        y, width = 48 + 22 * row, 480 * ns / longest
        lines += [
            f'<text x="330" y="{y + 12}" text-anchor="end">{escape(printable(name[:50]))}</text>',
            f'<rect x="340" y="{y}" width="{width:.1f}" height="16" fill="{colours[kind]}"/>',
            f'<text x="{346 + width:.1f}" y="{y + 12}">{_ms(ns)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
