"""Reports of the program pass on one block: its subgraphs, operators, and reasons of fallbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning.last_runs import History, LastRuns
from paddle_ngraph.partitioning.operator_reports import BlockOperators, OperatorReport


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

    def kinds(self) -> dict[int, str]:
        """``engine``, or ``kernel`` if the function calls Paddle's, by index of an operator."""
        ops = () if self.graph is None else self.graph.ops
        called = {op.index for op in filter(kernel_calls.runs_kernel, ops)}
        return {index: "kernel" if index in called else "engine" for index in self.indices}

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
        block_operators: The operators of the block.
    """

    intervals: list[IntervalReport]
    native: list[NativeOp]
    has_small_interval: bool = False
    program: str = ""
    engines: int = 0
    drawing: int = 0
    onednn_kernels: int = 0
    block_operators: BlockOperators | None = field(default=None, repr=False, compare=False)

    @property
    def operators(self) -> Sequence[OperatorReport]:
        """The operators of the block, for a drawing."""
        return () if self.block_operators is None else self.block_operators.reports

    def call_stack(self, index: int) -> int:
        """The handle of the call stack of the operator with this index; 0 if there is none."""
        return 0 if self.block_operators is None else self.block_operators.call_stacks[index]


def summary(types: Sequence[str]) -> str:
    """The 8 most common types in a list of operator types, with their counts."""
    counts = Counter(short_name(op_type) for op_type in types).most_common()
    named = [f"{op_type} x{count}" if count > 1 else op_type for op_type, count in counts[:8]]
    return ", ".join(named) + (", ..." if len(counts) > 8 else "")


def short_name(op_type: str) -> str:
    return op_type.removeprefix("pd_op.")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def operator_kinds(report: BlockReport) -> list[tuple[OperatorReport, str]]:
    """The compute operators of a block, with ``engine``, ``native``, or ``kernel``.

    ``kernel`` is an operator of a subgraph whose kernel of Paddle the function calls.
    """
    kinds: dict[int, str] = {op.index: "native" for op in report.native}
    for interval in report.intervals:
        kinds.update(interval.kinds())
    known = ((each, kinds.get(each.index)) for each in report.operators if each.is_compute)
    return [(each, kind) for each, kind in known if kind is not None]
