"""The page of a report: coverage, what ran, the graph, subgraphs, and reasons of fallbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paddle_ngraph import flags
from paddle_ngraph.conversion import disk_cache
from paddle_ngraph.conversion.settings import RunSettings
from paddle_ngraph.ir.graph import Graph, plain_type
from paddle_ngraph.ir.reasons import remedy_of
from paddle_ngraph.pages.page import (
    Bar,
    BarPart,
    Drawing,
    GroupBox,
    OperatorBox,
    Page,
    TextTable,
)
from paddle_ngraph.partitioning.block_report import (
    BlockReport,
    IntervalReport,
    NativeOp,
    counted,
    operator_kinds,
    short_name,
    summary,
)
from paddle_ngraph.partitioning.last_runs import History, LastRuns
from paddle_ngraph.partitioning.operator_reports import OperatorReport
from paddle_ngraph.settings import SETTINGS

# Native times of operators by type without dialect and the mark of in-place variants, in ns.
NativeTimes = Mapping[str, int]


@dataclass(frozen=True)
class _BlockOnPage:
    """A block with the title of its drawing, and the numbers of its subgraphs on the page."""

    title: str
    report: BlockReport
    first_number: int

    def name(self, position: int) -> str:
        """The name of a subgraph on the page."""
        return f"subgraph {self.first_number + position}"


def page(
    title: str,
    lines: Sequence[str],
    programs: Sequence[tuple[str, Sequence[BlockReport]]],
    native_times: NativeTimes | None = None,
    why_unmeasured: str = "",
) -> Page:
    """Returns the page of a report.

    Args:
        title: The heading.
        lines: Sentences about the program as a whole, with what ran.
        programs: The name and the blocks of each program.
        native_times: The times of a native run, if one was measured.
        why_unmeasured: Why none was, otherwise.
    """
    blocks = list(_blocks(programs))
    history = History()
    return Page(
        title,
        [*lines, *_sizes_of_estimates(blocks)],
        _coverage(blocks, native_times),
        [_drawing(block, history) for block in blocks if block.report.operators],
        [
            _subgraphs(blocks, history),
            _fallbacks(blocks, native_times or {}),
            _times(blocks, native_times, why_unmeasured),
        ],
    )


def _blocks(programs: Sequence[tuple[str, Sequence[BlockReport]]]) -> Iterator[_BlockOnPage]:
    number = 1
    for name, blocks in programs:
        for index, block in enumerate(blocks):
            title = f"block {index}" if index else "global block"
            full = ", ".join(filter(None, (name, block.program, title)))
            yield _BlockOnPage(full, block, number)
            number += len(block.intervals)


def _sizes_of_estimates(blocks: Sequence[_BlockOnPage]) -> Iterator[str]:
    """A sentence with the sizes that estimates of work are for, if shapes are dynamic."""
    shapes = {
        name: shape
        for block in blocks
        if block.report.block_operators is not None
        for name, shape in block.report.block_operators.shapes.items()
    }
    fed = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    operators = (operator for block in blocks for operator in block.report.operators)
    is_dynamic = any("?" in result for operator in operators for result in operator.results)
    assumed = f"{SETTINGS.typical_dimension_size} for {'other ' if fed else ''}dynamic dimensions"
    parts = [fed] * bool(fed) + [assumed] * is_dynamic
    if parts:
        yield f"Estimates take {', and '.join(parts)}."


# -- coverage -------------------------------------------------------------------------------------


def _coverage(blocks: Sequence[_BlockOnPage], native_times: NativeTimes | None) -> list[Bar]:
    operators, flops, num_bytes = Counter[str](), Counter[str](), Counter[str]()
    kinds_of_type: dict[str, set[str]] = {}
    for block in blocks:
        for operator, kind in operator_kinds(block.report):
            side = "engine" if kind == "engine" else "native"
            operators[side] += 1
            flops[side] += operator.num_flops
            num_bytes[side] += operator.num_bytes
            kinds_of_type.setdefault(plain_type(operator.type), set()).add(side)
    bars = [
        _bar("Operators", operators, lambda value: f"{value:,}"),
        _bar("Estimated FLOPs", flops, lambda value: _with_unit(value, "FLOP")),
        _bar("Estimated bytes", num_bytes, lambda value: _with_unit(value, "B")),
    ]
    if native_times:
        times = Counter[str]()
        for name, ns in native_times.items():
            sides = kinds_of_type.get(name)
            if sides:  # constants and lists compute nothing, and are in no function
                times["both" if len(sides) > 1 else next(iter(sides))] += ns
        bars.append(_bar("Measured native time", times, _duration))
    return bars if sum(operators.values()) else []


def _bar(title: str, values: Counter[str], text: object) -> Bar:
    assert callable(text)
    sides = ("engine", "both", "native")
    return Bar(title, [BarPart(side, values[side], text(values[side])) for side in sides])


def _with_unit(value: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{value:.3g} {prefix}{unit}"


def _duration(ns: float) -> str:
    return f"{ns / 1e9:.3g} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms"


# -- the graph ------------------------------------------------------------------------------------


def _drawing(block: _BlockOnPage, history: History) -> Drawing:
    report = block.report
    groups = {
        index: number
        for number, interval in enumerate(report.intervals)
        for index in interval.indices
    }
    reasons = {op.index: op for op in report.native}
    kinds = {operator.index: kind for operator, kind in operator_kinds(report)}
    positions = {each.index: position for position, each in enumerate(report.operators)}
    return Drawing(
        block.title,
        [
            OperatorBox(
                f"{short_name(each.type)} {each.name}".strip(),
                kinds.get(each.index, "other"),
                groups.get(each.index, -1),
                [positions[i] for i in each.inputs if i in positions],
                list(_details(each, reasons.get(each.index))),
            )
            for each in report.operators
        ],
        [
            _group(_subgraph_row(block.name(number), interval, block, history))
            for number, interval in enumerate(report.intervals)
        ],
    )


def _group(row: Sequence[str]) -> GroupBox:
    return GroupBox(row[0], list(zip(_SUBGRAPH_COLUMNS, row))[1:])


def _details(operator: OperatorReport, native: NativeOp | None) -> Iterator[tuple[str, str]]:
    yield "operator", f"{operator.type}, {operator.index} of its block"
    if operator.results:
        yield "results", "\n".join(operator.results)
    if operator.is_compute:
        yield "estimated work", _work_text(operator.num_flops, operator.num_bytes)
    if native is not None:
        yield "reason", native.reason
        yield "would convert it", remedy_of(native.reason)
    if operator.line:
        yield "line", operator.line


def _work_text(flops: int, num_bytes: int) -> str:
    return f"{_with_unit(flops, 'FLOP')}, {_with_unit(num_bytes, 'B')}"


# -- tables ---------------------------------------------------------------------------------------

_SUBGRAPH_COLUMNS = (
    "subgraph",
    "operators",
    "types",
    "estimated work",
    "precision",
    "threads",
    "functions",
    "guards",
    "last runs",
)


def _subgraphs(blocks: Sequence[_BlockOnPage], history: History) -> TextTable:
    rows = [
        _subgraph_row(block.name(number), interval, block, history)
        for block in blocks
        for number, interval in enumerate(block.report.intervals)
    ]
    note = "" if rows else "The engine runs none of the operators."
    return TextTable("Subgraphs", _SUBGRAPH_COLUMNS, rows, note, frozenset({1}))


def _subgraph_row(
    name: str, interval: IntervalReport, block: _BlockOnPage, history: History
) -> list[str]:
    inside = set(interval.indices)
    members = [each for each in block.report.operators if each.index in inside]
    work = _work_text(sum(o.num_flops for o in members), sum(o.num_bytes for o in members))
    last = history.of_graph(interval.graph)
    native = [*interval.kernel_calls, *interval.calls_inside]
    return [
        f"{name} on {interval.device}" if interval.device else name,
        f"{len(interval.types)}",
        summary(interval.types)
        + (f"\nby Paddle's kernels in the function: {summary(native)}" if native else ""),
        work if members else "",
        *_settings(interval.graph),
        _functions(interval.graph, last),
        "\n".join(_guards(interval.graph)),
        "\n".join(last.lines()) or "none in this process",
    ]


def _settings(graph: Graph | None) -> tuple[str, str]:
    """The precision and the threads of the next run of a subgraph."""
    if graph is None:
        return "", ""
    try:
        settings = RunSettings.of(graph.to_string())
    except ValueError as error:  # a flag has an invalid value
        return str(error), ""
    declared = ", declared bfloat16" if graph.has_bfloat16() else ""
    runs = f" for each of {settings.runs_at_once} runs" if settings.runs_at_once > 1 else ""
    return f"{settings.precision}{declared}", f"{settings.threads}{runs}"


def _functions(graph: Graph | None, last: LastRuns) -> str:
    """The functions of a subgraph in this process with their times, and whether disk has some."""
    lines = [
        f"{each.reason.replace('_', ' ')} in {_duration(each.ns)}" for each in last.functions
    ] or ["none in this process"]
    if len(lines) > 4:
        lines = [f"{len(lines)} functions, the last:", *lines[-3:]]
    if not flags.get("ngraph_cache_dir"):
        lines.append("no disk cache")
    elif graph is not None and disk_cache.is_stored(graph.to_string()):
        lines.append("on disk")
    return "\n".join(lines)


def _guards(graph: Graph | None) -> Iterator[str]:
    """The conditions under which a run uses a function, instead of Paddle or another function."""
    if graph is None:
        return
    given = [*graph.inputs, *graph.states]
    dtypes = Counter(spec.dtype for spec in given)
    yield "dtypes: " + ", ".join(f"{name} x{count}" for name, count in dtypes.items())
    dynamic = sum(size < 0 for spec in given for size in spec.shape)
    yield f"{counted(dynamic, 'dynamic dimension')}" if dynamic else "all shapes static"
    if graph.value_inputs:
        yield f"values of {counted(len(graph.value_inputs), 'input')} are known to a function"
    if checked := sum(op.checked for op in graph.all_ops()):
        yield f"{counted(checked, 'operator')} checked for integers beyond 32 bits"
    if graph.weights:
        yield f"{counted(len(graph.weights), 'weight')} unchanged"
    if graph.states:
        yield f"{counted(len(graph.states), 'state')} written in place"


def _fallbacks(blocks: Sequence[_BlockOnPage], native_times: NativeTimes) -> TextTable:
    found: dict[tuple[str, str], list[str]] = {}
    for block in blocks:
        lines = {each.index: each.line for each in block.report.operators}
        for op in block.report.native:
            line = lines.get(op.index, "")
            found.setdefault((op.type, op.reason), []).append(line or f"operator {op.index}")
    rows = [
        [
            short_name(op_type),
            str(len(places)),
            _native_ms(native_times, op_type),
            reason,
            remedy_of(reason),
            "\n".join([*list(dict.fromkeys(places))[:3], *(["…"] if len(set(places)) > 3 else [])]),
        ]
        for (op_type, reason), places in found.items()
    ]
    rows.sort(key=lambda row: -native_times.get(plain_type(row[0]), 0))
    columns = ("operator", "number", "native ms", "reason", "would convert it", "where")
    note = "" if rows else "None: every operator is in a subgraph."
    return TextTable("Operators that Paddle runs", columns, rows, note, frozenset({1, 2}))


def _native_ms(native_times: NativeTimes, op_type: str) -> str:
    ns = native_times.get(plain_type(op_type))
    return "" if ns is None else f"{ns / 1e6:.3f}"


def _times(
    blocks: Sequence[_BlockOnPage], native_times: NativeTimes | None, why_unmeasured: str
) -> TextTable:
    title = "Native time by type of operator"
    columns = ("type", "ms", "share", "in subgraphs", "by Paddle")
    if not native_times:
        return TextTable(title, columns, [], why_unmeasured or "Not measured.")
    counts: dict[str, Counter[str]] = {}
    for block in blocks:
        for operator, kind in operator_kinds(block.report):
            counts.setdefault(plain_type(operator.type), Counter())[kind] += 1
    total = sum(native_times.values()) or 1
    rows = []
    for name, ns in sorted(native_times.items(), key=lambda item: -item[1]):
        of_type = counts.get(name, Counter())
        native = of_type["native"] + of_type["kernel"]
        rows.append(
            [name, f"{ns / 1e6:.3f}", f"{ns / total:.1%}", str(of_type["engine"]), str(native)]
        )
    note = (
        "By Paddle's profiler, in one run by Paddle's kernels alone. A type that is in subgraphs "
        "and also run by Paddle counts as both above, since the profiler adds up types."
    )
    return TextTable(title, columns, rows, note, frozenset({1, 2, 3, 4}))
