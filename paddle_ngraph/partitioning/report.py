"""Reports of the program pass: subgraphs, and operators that fall back with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paddle_ngraph.errors import printable
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning.last_runs import History, LastRuns


@dataclass(frozen=True)
class NativeOp:
    """An operator that falls back to Paddle, and the reason."""

    index: int
    type: str
    reason: str


@dataclass(frozen=True)
class IntervalReport:
    """A converted subgraph.

    Attributes:
        first, last: Indices of its first and last operator in the block.
        types: The types of all its operators.
        draws: Whether the subgraph samples random numbers.
        device: The chosen device; empty if none was chosen.
        indices: The indices of all its operators.
        graph: The graph of the subgraph.
        kernel_calls: The types of those operators whose kernels of Paddle the function calls: their
            time is native.
        calls_inside: The types of such operators inside its loops and branches.
    """

    first: int
    last: int
    types: list[str]
    draws: bool
    device: str = ""
    indices: Sequence[int] = ()
    graph: Graph | None = field(default=None, repr=False, compare=False)
    kernel_calls: Sequence[str] = ()
    calls_inside: Sequence[str] = ()

    @property
    def last_runs(self) -> LastRuns:
        """The runs of the subgraph among the last events."""
        return History().of_graph(self.graph)

    @property
    def runs_while_compiling(self) -> int | None:
        """Number of the last runs that were native while functions of the subgraph were compiled.

        ``None`` if no function was compiled in the background.
        """
        return self.last_runs.while_compiling


@dataclass(frozen=True)
class BlockReport:
    """One block of a program.

    Attributes:
        intervals, native: Converted subgraphs, and operators that fall back to Paddle.
        has_small_interval: Whether a subgraph falls back because the cost model finds it too small.
        program: The program of the block, if the report covers several.
        engines: Number of operators that were engine operators before the pass.
        drawing: Number of engine operators that sample random numbers, old and new ones.
        onednn_kernels: Number of operators, inside subgraphs or outside, that Paddle's kernels
            compute although Paddle has a kernel of oneDNN for them.
    """

    intervals: list[IntervalReport]
    native: list[NativeOp]
    has_small_interval: bool = False
    program: str = ""
    engines: int = 0
    drawing: int = 0
    onednn_kernels: int = 0


@dataclass(frozen=True)
class Report:
    """A program. ``str()`` gives a readable summary.

    Attributes:
        blocks: The global block first, then the blocks of control flow.
        packed: Number of recurrent layers that run with packed weights.
        why_native: Why the whole program falls back to Paddle nevertheless, if it does.
        program: Id in events of the program as a whole; 0: unknown.
        measured: The measurements by which the engine runs it, if a rule prefers Paddle's oneDNN.
    """

    blocks: list[BlockReport]
    packed: int = 0
    why_native: str | None = None
    program: int = field(default=0, compare=False)
    measured: str = ""

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
        lines = [
            f"{self.ops_converted} of {self.ops_converted + self.ops_native} compute ops "
            f"({self.share:.1%}) run through nGraph, in {_count(len(self.intervals), 'interval')}."
        ]
        history = History()
        runs = history.of_program(self.program)
        of_intervals = [history.of_graph(interval.graph) for interval in self.intervals]
        if self.why_native is not None:
            lines.insert(0, f"Runs natively: {self.why_native}.")
        if self.why_native is not None or _are_native(runs, *of_intervals):
            lines[-1] = lines[-1].replace(" run ", " could run ")
        if self.measured:
            lines.append(f"Measured against Paddle's oneDNN: {self.measured}.")
        lines += runs.lines()
        if self.engines:
            lines.append(f"{_count(self.engines, 'engine operator')} in it already.")
        if self.packed:
            lines.append(f"{_count(self.packed, 'recurrent layer')} run with packed weights.")
        block_counts: Counter[str] = Counter()
        rest = iter(of_intervals)
        for block in self.blocks:
            if block.intervals or block.native:
                lines += _block_lines(block_counts[block.program], block, rest)
            block_counts[block.program] += 1
        # Names and types of operators come from the model.
        return printable("\n".join(line.replace("\n", "\\n") for line in lines))


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
            f"{_count(len(interval.types), 'op')}: {summary(interval.types)}"
        )
        if interval.kernel_calls:
            calls = summary(interval.kernel_calls)
            lines.append(f"    native, by Paddle's kernels in the function: {calls}")
        if interval.calls_inside:
            calls = summary(interval.calls_inside)
            lines.append(f"    native, by Paddle's kernels in its loops and branches: {calls}")
        last = next(runs)
        if (compiling := last.while_compiling) is not None:
            runs_by_paddle = _count(compiling, "run")
            lines.append(f"    compiled in the background: {runs_by_paddle} native meanwhile")
        lines += [f"    {line}" for line in last.lines()]
    by_reason: dict[tuple[str, str], list[int]] = {}
    for op in block.native:
        by_reason.setdefault((op.type, op.reason), []).append(op.index)
    for (op_type, reason), indices in by_reason.items():
        shown = ", ".join(map(str, indices[:4])) + (", ..." if len(indices) > 4 else "")
        lines.append(f"  native {_short_name(op_type)} x{len(indices)} (at {shown}): {reason}")
    return lines


def summary(types: Sequence[str]) -> str:
    """The 8 most common types in a list of operator types, with their counts."""
    counts = Counter(_short_name(op_type) for op_type in types).most_common()
    named = [f"{op_type} x{count}" if count > 1 else op_type for op_type, count in counts[:8]]
    return ", ".join(named) + (", ..." if len(counts) > 8 else "")


def _short_name(op_type: str) -> str:
    return op_type.removeprefix("pd_op.")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
