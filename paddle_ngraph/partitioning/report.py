"""Reports of the program pass: subgraphs, and operators that fall back with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddle_ngraph.errors import printable
from paddle_ngraph.pages.page import Page
from paddle_ngraph.partitioning import report_page
from paddle_ngraph.partitioning.block_report import (
    BlockReport,
    IntervalReport,
    NativeOp,
    counted,
    short_name,
    summary,
)
from paddle_ngraph.partitioning.last_runs import History, LastRuns
from paddle_ngraph.partitioning.report_page import NativeTimes


@dataclass(frozen=True)
class Report:
    """A program. ``str()`` gives a readable summary.

    Attributes:
        blocks: The global block first, then the blocks of control flow.
        packed: Number of recurrent layers that run with packed weights.
        why_native: Why the whole program falls back to Paddle nevertheless, if it does.
        program: Id in events of the program as a whole; 0: unknown.
        measured: The measurements by which the engine runs it, if a rule prefers Paddle's oneDNN.
        name: The heading of its page.
        native_times: Nanoseconds of a native run by type of operator, if they were measured.
        why_unmeasured: Why they were not.
    """

    blocks: list[BlockReport]
    packed: int = 0
    why_native: str | None = None
    program: int = field(default=0, compare=False)
    measured: str = ""
    name: str = field(default="", compare=False)
    native_times: NativeTimes = field(default_factory=dict, repr=False, compare=False)
    why_unmeasured: str = field(default="", repr=False, compare=False)

    @property
    def changes(self) -> bool:
        """Whether the pass replaces anything in the program."""
        return self.ops_converted > 0 or self.packed > 0

    @property
    def has_small_interval(self) -> bool:
        """Whether the converted share depends on the current sizes of dynamic dimensions."""
        return any(block.has_small_interval for block in self.blocks)

    @property
    def engines(self) -> int:
        """Number of engine operators that the program had before the pass."""
        return sum(block.engines for block in self.blocks)

    @property
    def drawing(self) -> int:
        """Number of engine operators whose subgraphs sample random numbers."""
        return sum(block.drawing for block in self.blocks)

    @property
    def intervals(self) -> list[IntervalReport]:
        """The subgraphs of all blocks that engine operators replace."""
        return [interval for block in self.blocks for interval in block.intervals]

    @property
    def native(self) -> list[NativeOp]:
        """The operators of all blocks that fall back to Paddle."""
        return [op for block in self.blocks for op in block.native]

    @property
    def kernel_calls(self) -> list[str]:
        """The types of all operators whose kernels functions call."""
        return [
            name
            for interval in self.intervals
            for name in (*interval.kernel_calls, *interval.calls_inside)
        ]

    @property
    def onednn_kernels(self) -> int:
        """Number of operators that Paddle's oneDNN would compute, and other kernels do."""
        return sum(block.onednn_kernels for block in self.blocks)

    @property
    def ops_converted(self) -> int:
        """Number of operators that nGraph computes, without those that compute nothing."""
        return sum(len(each.types) - len(each.kernel_calls) for each in self.intervals)

    @property
    def ops_native(self) -> int:
        """Number of operators that Paddle's kernels compute, inside subgraphs or outside."""
        return len(self.native) + len(self.kernel_calls)

    @property
    def share(self) -> float:
        """The converted fraction of all compute operators, 0 to 1 (1 for an empty program)."""
        total = self.ops_converted + self.ops_native
        return self.ops_converted / total if total else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as data for JSON; fields of later releases may be added."""
        return {
            "ops_converted": self.ops_converted,
            "ops_native": self.ops_native,
            "packed": self.packed,
            "why_native": self.why_native,
            "blocks": [
                {
                    "program": block.program,
                    "intervals": [
                        {
                            "first": i.first,
                            "last": i.last,
                            "types": i.types,
                            "device": i.device,
                            "kernel_calls": list(i.kernel_calls),
                            "calls_inside": list(i.calls_inside),
                        }
                        for i in block.intervals
                    ],
                    "native": [
                        {"index": op.index, "type": op.type, "reason": op.reason}
                        for op in block.native
                    ],
                }
                for block in self.blocks
            ],
        }

    def __str__(self) -> str:
        history = History()
        of_intervals = [history.of_graph(interval.graph) for interval in self.intervals]
        lines = self._summary(history.of_program(self.program), of_intervals)
        block_counts: Counter[str] = Counter()
        rest = iter(of_intervals)
        for block in self.blocks:
            if block.intervals or block.native:
                lines += _block_lines(block_counts[block.program], block, rest)
            block_counts[block.program] += 1
        # Names and types of operators come from the model.
        return printable("\n".join(line.replace("\n", "\\n") for line in lines))

    def _summary(self, runs: LastRuns, of_intervals: Sequence[LastRuns]) -> list[str]:
        """Sentences on the program as a whole, given its runs and those of its subgraphs."""
        lines = [
            f"{self.ops_converted} of {self.ops_converted + self.ops_native} compute ops "
            f"({self.share:.1%}) run through nGraph, in {counted(len(self.intervals), 'interval')}."
        ]
        if self.why_native is not None:
            lines.insert(0, f"Runs natively: {self.why_native}.")
        if self.why_native is not None or _are_native(runs, *of_intervals):
            lines[-1] = lines[-1].replace(" run ", " could run ")
        if self.measured:
            lines.append(f"Measured against Paddle's oneDNN: {self.measured}.")
        lines += runs.lines()
        if self.engines:
            lines.append(f"{counted(self.engines, 'engine operator')} in it already.")
        if self.packed:
            lines.append(f"{counted(self.packed, 'recurrent layer')} run with packed weights.")
        return lines

    def page(self, native_times: NativeTimes | None = None) -> Page:
        """Returns the report as the contents of a page: see :meth:`to_html`."""
        history = History()
        of_intervals = [history.of_graph(interval.graph) for interval in self.intervals]
        return report_page.page(
            self.name or "Program",
            self._summary(history.of_program(self.program), of_intervals),
            [("", self.blocks)],
            self.native_times if native_times is None else native_times,
            self.why_unmeasured,
        )

    def to_html(self, native_times: NativeTimes | None = None) -> str:
        """Returns the report as one HTML file, which loads nothing.

        It has the coverage, what ran, the graph, each subgraph and each operator that falls back,
        and native times if they were measured.

        Args:
            native_times: Nanoseconds of a native run by type of operator: ``operator_times`` of a
                ``TimeProfile``. ``python -m paddle_ngraph explain --html`` measures them itself.
        """
        return self.page(native_times).html()

    def _repr_html_(self) -> str:
        return self.page().frame()


def _are_native(*runs: LastRuns) -> bool:
    """Whether there are runs, and the engine ran none of them."""
    return any(each.runs for each in runs) and not any(each.count("engine") for each in runs)


def _block_lines(index: int, block: BlockReport, runs: Iterator[LastRuns]) -> list[str]:
    """The lines of a block; ``runs`` yields those of its subgraphs."""
    title = f"block {index}" if index else "global block"
    lines = [f"{block.program}, {title}" if block.program else title]
    for interval in block.intervals:
        lines.append(
            f"  interval [{interval.first}, {interval.last}]"
            f"{' on ' + interval.device if interval.device else ''}: "
            f"{counted(len(interval.types), 'op')}: {summary(interval.types)}"
        )
        if interval.kernel_calls:
            calls = summary(interval.kernel_calls)
            lines.append(f"    native, by Paddle's kernels in the function: {calls}")
        if interval.calls_inside:
            calls = summary(interval.calls_inside)
            lines.append(f"    native, by Paddle's kernels in its loops and branches: {calls}")
        last = next(runs)
        if (compiling := last.while_compiling) is not None:
            runs_by_paddle = counted(compiling, "run")
            lines.append(f"    compiled in the background: {runs_by_paddle} native meanwhile")
        lines += [f"    {line}" for line in last.lines()]
    by_reason: dict[tuple[str, str], list[int]] = {}
    for op in block.native:
        by_reason.setdefault((op.type, op.reason), []).append(op.index)
    for (op_type, reason), indices in by_reason.items():
        shown = ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")
        lines.append(f"  native {short_name(op_type)} x{len(indices)} (at {shown}): {reason}")
    return lines
