"""``paddle_ngraph.profile()``: the time of a block of code, by subgraph, node and operator."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paddle_ngraph import _core, statistics
from paddle_ngraph.errors import NgraphError, printable
from paddle_ngraph.ir.graph import Graph, Op
from paddle_ngraph.partitioning import operator_lines
from paddle_ngraph.profiling import node_times, operator_calls, pictures, recorded_inputs, timeline
from paddle_ngraph.profiling.node_times import FunctionTimes, NodeTime
from paddle_ngraph.profiling.operator_calls import OperatorCall
from paddle_ngraph.profiling.pictures import Point, in_ms
from paddle_ngraph.profiling.timeline import TimelineSpan
from paddle_ngraph.profiling.work import FinishedSpan, SpansOfRuns, of_builds, take
from paddle_ngraph.statistics import MAX_EVENTS, Event
from paddle_ngraph.utils import signals

_ROWS = 30
_CLOCK_READINGS = 20
_PADDLE = "Paddle's operators"
_CUSTOM_KERNELS = "Paddle's kernels in functions"


@dataclass(frozen=True)
class SubgraphProfile:
    """A subgraph that the engine ran in the block.

    Attributes:
        number: Its number in the profile, from 1.
        graph: The graph.
        lines: Lines of user code by index of operator, as far as they are known.
        runs: The runs of its functions.
        function: The nodes of the function that was compiled for the profile.
        work: Nanoseconds of the runs by kind of work: see :attr:`TimeProfile.totals`.
    """

    number: int
    graph: Graph
    lines: Mapping[int, str]
    runs: Sequence[Event]
    function: FunctionTimes
    work: Mapping[str, int] = field(default_factory=dict)

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
        spans: The work inside runs and builds.
    """

    def __init__(self, nodes: bool = True) -> None:
        self.ns = 0
        self.subgraphs: list[SubgraphProfile] = []
        self.events: list[Event] = []
        self.calls: list[OperatorCall] = []
        self.why_no_calls = ""
        self.spans: list[FinishedSpan] = []
        self._timeline: list[TimelineSpan] = []
        self._kernel_ns = 0
        self._measures_nodes = nodes
        self._stack = ExitStack()

    def __enter__(self) -> TimeProfile:
        with ExitStack() as stack:
            self._given = stack.enter_context(recorded_inputs.recording())
            take()  # those of a profile in which a run has not ended
            self._kernel_ns = -statistics.stats()["kernel_call_ns"]
            self._profiler = operator_calls.new_profiler()
            if self._profiler is not None:
                stack.enter_context(self._profiler)
            self._stack = stack.pop_all()
        self._clock_ns = _lead_of_paddles_clock()
        self._begin_ns = time.monotonic_ns()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.ns = time.monotonic_ns() - self._begin_ns
        self._stack.close()
        self.spans = [span for span in take() if span.start_ns >= self._begin_ns]
        self._kernel_ns += statistics.stats()["kernel_call_ns"]
        self.events = [e for e in statistics.events() if e.start_ns >= self._begin_ns]
        if self._profiler is None:
            self.why_no_calls = "not measured, since the process has another paddle.profiler"
        else:
            self.calls = operator_calls.calls_of(self._profiler)
            self._timeline = operator_calls.timeline_of(self._profiler, self._clock_ns)
            self._profiler = None  # Paddle creates no other while it exists
        if kind is None:
            self.subgraphs = list(self._subgraphs())
        self._given = {}

    def _subgraphs(self) -> Iterator[SubgraphProfile]:
        runs: dict[int, list[Event]] = {}
        for event in self.events:
            if event.outcome == "engine":
                runs.setdefault(event.subgraph, []).append(event)
        inside = SpansOfRuns(self.events, self.spans)
        ids = {text: subgraph for subgraph, text in _core.engine_graphs(set(runs))}
        for number, (text, given) in enumerate(self._given.items(), 1):
            own = runs.get(ids.get(text, 0), [])
            yield SubgraphProfile(
                number,
                Graph.from_string(text),
                operator_lines.of(text),
                own,
                self._function(text, given),
                inside.of(own),
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

        Of runs of the engine: ``compute``, ``copies``, ``optimizer updates``, ``random numbers``,
        ``waits`` for builds, and ``other work of runs``. Of builds, in runs and in the background:
        ``convert``, ``compile``, and ``other work of builds``. Then ``Paddle's operators``. A kind
        has no time of another one, but a run waits while another thread builds for it.
        """
        runs = [event for event in self.events if event.outcome == "engine"]
        return {
            **SpansOfRuns(self.events, self.spans).of(runs),
            **of_builds(self.events, self.spans),
            _PADDLE: sum(call.ns for call in self.calls),
        }

    @property
    def operator_times(self) -> dict[str, int]:
        """Nanoseconds of the calls of Paddle's operators by type, the longest first.

        With the engine off, these are the native times for the page of a report::

            with paddle_ngraph.use_ngraph(False), paddle_ngraph.profile() as native:
                step()
            page = paddle_ngraph.explain(program).to_html(native.operator_times)
        """
        return {type: ns for type, _, ns in operator_calls.by_type(self.calls)}

    def table(self, rows: int = _ROWS) -> str:
        """Returns the profile as text.

        It has the :attr:`totals`, and for each subgraph its slowest nodes, with Paddle's operators
        and the lines that created them, and their operations and bytes per second beside the
        measured peak of the machine; then the calls of Paddle's operators by type.

        Args:
            rows: The largest number of nodes, and of types.
        """
        lines = [f"{in_ms(self.ns)} in the block, of all threads:"]
        lines += [f"  {in_ms(ns):>12}  {name}" for name, ns in self.totals.items()]
        if self._kernel_ns:
            lines.append(f"  {in_ms(self._kernel_ns):>12}  of the computations: {_CUSTOM_KERNELS}")
        if len(self.events) == MAX_EVENTS:
            lines.append(f"  of the last {MAX_EVENTS:,} events: profile a shorter block")
        native = Counter(e.reason for e in self.events if e.outcome in ("native", "raised"))
        lines += [f"  {count} native runs: {reason}" for reason, count in native.most_common()]
        for subgraph in self.subgraphs:
            lines += _subgraph_lines(subgraph, rows)
        if self.calls or self.why_no_calls:
            lines += ["", f"Paddle's operators: {self.why_no_calls}".rstrip()]
            for type, count, ns in list(operator_calls.by_type(self.calls))[:rows]:
                where = ", ".join(operator_lines.of_native(type))
                lines.append(f"  {in_ms(ns):>12}  {type} x{count}  {where}".rstrip())
        return printable("\n".join(lines))

    def __str__(self) -> str:
        return self.table()

    # -- files ------------------------------------------------------------------------------------

    def to_chrome_trace(
        self, path: str | os.PathLike[str], paddle_profiler: Any | None = None
    ) -> None:
        """Writes the timeline of the block as JSON, for Perfetto or ``chrome://tracing``.

        It joins the runs and builds of the engine, with the work inside, and the timeline of
        ``paddle.profiler``: operators, steps, and the user's own ``RecordEvent``. Nodes of
        functions are no part, since normal runs do not count their times.

        Args:
            path: The file.
            paddle_profiler: A ``paddle.profiler.Profiler`` of the user that has stopped, whose
                timeline is taken: beside it ``profile()`` has none of its own.

        Raises:
            NgraphError: The file cannot be written, or the profiler has recorded nothing.
        """
        of_paddle = self._timeline
        if paddle_profiler is not None:
            of_paddle = operator_calls.timeline_of(paddle_profiler, self._clock_ns)
        groups = [("paddle-ngraph", list(self._engine_timeline())), ("paddle.profiler", of_paddle)]
        _write(path, timeline.trace(groups))

    def _engine_timeline(self) -> Iterator[TimelineSpan]:
        names = {s.runs[0].subgraph: f"subgraph {s.number}" for s in self.subgraphs if s.runs}
        types = {s.runs[0].subgraph: _types(s.graph) for s in self.subgraphs if s.runs}
        for event in self.events:
            name = f"{names.get(event.subgraph, 'program')}: {event.reason}"
            details = {"operators": types.get(event.subgraph, "")}
            yield TimelineSpan(name, event.outcome, event.thread, event.start_ns, event.ns, details)
        for span in self.spans:
            yield TimelineSpan(span.work, "work", span.thread, span.start_ns, span.ns)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture as SVG: the slowest nodes of all subgraphs, and Paddle's operators.

        Raises:
            NgraphError: The file cannot be written.
        """
        bars = [
            (f"{s.number}: {_name(s, node)}", node.ns * len(s.runs), "engine")
            for s in self.subgraphs
            for node in s.function.nodes
        ]
        bars += [(type, ns, "native") for type, _, ns in operator_calls.by_type(self.calls)]
        bars.sort(key=lambda bar: -bar[1])
        title = f"{in_ms(self.ns)}: the slowest nodes and operators"
        _write(path, pictures.bars(title, bars[:_ROWS]))

    def roofline(self, path: str | os.PathLike[str]) -> None:
        """Writes a roofline chart as SVG: the nodes of all subgraphs beside the measured peak.

        Nodes that compute nothing, such as reorders, are no part of it.

        Raises:
            NgraphError: The file cannot be written.
        """
        points = [
            Point(
                f"{s.number}: {_name(s, node)}",
                node.ns * len(s.runs),
                node.flops_per_ns,
                node.bytes_per_ns,
            )
            for s in self.subgraphs
            for node in s.function.nodes
        ]
        title = "Nodes beside the measured peak: one circle each, its area the time"
        _write(path, pictures.roofline(title, points, node_times.peak()))


def _lead_of_paddles_clock() -> int:
    """Nanoseconds by which the clock of Paddle's profiler is ahead of that of events.

    Of several readings, that in which the thread has waited least between both clocks.
    """
    readings = [
        (time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(_CLOCK_READINGS)
    ]
    before, there, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return there - (before + after) // 2


def _types(graph: Graph) -> str:
    counts = Counter(op.type.removeprefix("pd_op.") for op in graph.ops)
    return ", ".join(f"{name} x{count}" for name, count in counts.most_common(8))


def _name(subgraph: SubgraphProfile, node: NodeTime) -> str:
    return _names(subgraph.operators(node)) or node.type


def _subgraph_lines(subgraph: SubgraphProfile, rows: int) -> Iterator[str]:
    function, runs = subgraph.function, len(subgraph.runs)
    count = len(subgraph.graph.ops)
    yield ""
    yield f"subgraph {subgraph.number}: {count} operators, {runs} runs in {in_ms(subgraph.ns)}"
    parts = [f"{name} {in_ms(ns)}" for name, ns in subgraph.work.items() if ns]
    yield f"  {', '.join(parts)}"
    if function.why_unmeasured:
        yield f"  nodes not measured: {function.why_unmeasured}"
    if not function.nodes:
        return
    total = sum(node.ns for node in function.nodes) or 1.0
    peak = node_times.peak()
    yield (
        f"  a function compiled for the profile, which no cache gets: converted in "
        f"{in_ms(function.convert_ns)}, compiled in {in_ms(function.compile_ns)}; its nodes take "
        f"{in_ms(total)} in a run"
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
    flops, num_bytes = node.flops_per_ns, node.bytes_per_ns
    arithmetic = f"{flops:8.1f} {flops / peak.flops_per_ns:5.0%}" if node.num_flops else " " * 14
    speeds = f"{arithmetic} {num_bytes:6.1f} {num_bytes / peak.bytes_per_ns:5.0%}"
    return (
        f"  {node.ns / 1e6:9.3f} {node.ns / total:6.1%} {speeds}  {_names(operators) or '?'}, "
        f"{node.type} {node.kernel} {node.shape}  {', '.join(lines[:2])}"
    ).rstrip()


def _names(operators: Sequence[tuple[str, str]]) -> str:
    return " + ".join(type for type, _ in operators[:4]) + (" ..." if len(operators) > 4 else "")


def _write(path: str | os.PathLike[str], text: str) -> None:
    with signals.own_errors():
        try:
            Path(path).write_text(text, "utf-8")
        except OSError as error:
            raise NgraphError(f"{os.fspath(path)}: {error.strerror}") from error
