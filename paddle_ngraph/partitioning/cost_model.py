"""The cost rule: an interval that Paddle itself runs very quickly stays native.

Running one engine operator costs 20 to 50 us before it computes anything
(``python -m benchmarks overhead``), as much as Paddle needs for some operators on small tensors. So
an interval goes to the engine where Paddle would take at least ``FLAGS_ngraph_min_interval_us`` for
it, by the estimate below. The estimate uses rounded measurements, and is meaningless for long
intervals, which are always worth it.

That is for intervals among Paddle's own operators. A program of one interval runs without Paddle's
work around operators (executor/call_cache.py), which takes longer than the operators themselves. It
is worth it once it runs often enough to be compiled (executor/hook.py): there the rule does not
apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from paddle_ngraph import flags
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.paddle_private.names import kernel_name, registered_kernels
from paddle_ngraph.paddle_private.protocols import Program
from paddle_ngraph.partitioning.analysis.block_view import WHILE, BlockView, OpNode

# What Executor takes to start one operator.
DISPATCH_US = 8.0
# Elements that one thread reads or writes in a microsecond.
ELEMENTS_PER_US = 2000.0
# Products that one core computes in a microsecond, at about half of its peak.
_MULTIPLICATIONS_PER_US = 30e3
_MATMUL_PREFIXES = ("matmul", "conv", "bmm", "mul", "depthwise_conv", "addmm", "einsum")

# Beside Paddle's oneDNN an operator of an interval gains so much, a few microseconds. In the same
# unit: what the two borders of an interval cost, and what an operator loses that oneDNN has a
# kernel for and that stays native. Rounded up from benchmarks/results/intervals.md.
_ONEDNN_GAIN_PER_OPERATOR = 1
_ONEDNN_BOUNDARY_COST = 2
_ONEDNN_KERNEL_LOSS = 16

# A dimension that the program leaves open, where nobody knows what it is fed.
TYPICAL_SIZE = 64

# How often a loop is repeated, which nobody knows.
TYPICAL_ITERATIONS = 16

# A program whose feeds have grown by so much is looked at again.
REPLAN_GROWTH_FACTOR = 4


def native_us(graph: Graph, open_size: int = TYPICAL_SIZE) -> float:
    """Approximately how many microseconds Paddle would take for an interval.

    Args:
        graph: The interval.
        open_size: Used for each dimension that is open.
    """
    us = 0.0
    for op in graph.ops:
        specs = (*op.input_specs(), *op.output_specs())
        elements = sum(_elements(spec, open_size) for spec in specs)
        us += DISPATCH_US + elements / ELEMENTS_PER_US
        inside = [native_us(block, open_size) for block in op.blocks]
        us += TYPICAL_ITERATIONS * sum(inside) if op.type == WHILE else max(inside, default=0.0)
    return us


def reason_against(graph: Graph, open_size: int | None = TYPICAL_SIZE) -> str | None:
    """Why an interval stays native; ``None`` if it is worth it, or if ``open_size`` is ``None``.

    Paddle has few kernels for bfloat16 on CPUs, and some of them crash.
    """
    least = flags.get("ngraph_min_interval_us")
    if least <= 0 or open_size is None or graph.has_bfloat16():
        return None
    estimate = native_us(graph, open_size)
    if estimate >= least:
        return None
    return (
        f"its interval takes Paddle about {estimate:.0f} us, too little for the engine to pay "
        f"(FLAGS_ngraph_min_interval_us={least})"
    )


def us_of(view: BlockView, node: OpNode) -> float:
    """About how many microseconds one core takes for an operator."""
    read = [elements_of(view, m) for vid in node.reads for m in view.members(vid)]
    written = [elements_of(view, vid) for vid in node.writes]
    us = DISPATCH_US + (sum(read) + sum(written)) / ELEMENTS_PER_US
    return us + _matmul_us(node.type, read, written)


def us_of_run(graph: Graph, open_size: int) -> float:
    """About how many microseconds one core takes for an interval, products included.

    Args:
        graph, open_size: As for :func:`native_us`.
    """
    us = native_us(graph, open_size)
    for op in graph.ops:
        read = [_elements(spec, open_size) for spec in op.input_specs()]
        us += _matmul_us(op.type, read, [_elements(s, open_size) for s in op.output_specs()])
    return us


def _matmul_us(kind: str, read: Sequence[int], written: Sequence[int]) -> float:
    """What an operator takes for products, given how many elements it reads and writes."""
    if not _is_matmul_type(kind) or len(read) < 2 or not written:
        return 0.0
    # With [M, K], [K, N] and [M, N] this is MKN.
    return math.sqrt(read[0] * read[1] * max(written)) / _MULTIPLICATIONS_PER_US


def elements_of(view: BlockView, vid: str) -> int:
    """The number of elements of a variable; 0 if it is no tensor."""
    if not view.is_tensor(vid):
        return 0
    return math.prod(TYPICAL_SIZE if s < 0 else s for s in view.spec(vid, 0).shape)


def is_matmul_or_convolution(node: OpNode) -> bool:
    """Whether it computes products of matrices, or convolutions."""
    return _is_matmul_type(node.type)


def _is_matmul_type(kind: str) -> bool:
    return kind.removeprefix("pd_op.").startswith(_MATMUL_PREFIXES)


def _elements(spec: TensorSpec, open_size: int) -> int:
    return math.prod(open_size if size < 0 else size for size in spec.shape)


def dynamic_axes(programs: Iterable[Program]) -> list[tuple[str, int]]:
    """(feed, axis) for every dimension that the programs leave open."""
    return [
        (op.attrs()["name"], axis)
        for program in programs
        for op in program.global_block().ops
        if op.name() in ("pd_op.data", "pd_op.feed")
        for axis, size in enumerate(op.results()[0].shape)
        if size < 0
    ]


def is_faster_than_onednn(converted: int, intervals: int, native: Iterable[str]) -> bool:
    """Whether a predictor whose configuration has oneDNN on is faster through the engine.

    Args:
        converted: How many operators become part of an interval.
        intervals: How many there are.
        native: The types of the operators that stay native.
    """
    kernels = sum(has_onednn_kernel(kind) for kind in native)
    return (
        _ONEDNN_GAIN_PER_OPERATOR * converted
        >= _ONEDNN_BOUNDARY_COST * intervals + _ONEDNN_KERNEL_LOSS * kernels
    )


def has_onednn_kernel(kind: str) -> bool:
    """Whether Paddle has a oneDNN kernel for operators of a type."""
    return kind.removeprefix("pd_op.").removesuffix("_") in _onednn_kernels()


@cache
def _onednn_kernels() -> frozenset[str]:
    registered = registered_kernels("phi")
    found = {name for name, keys in registered.items() if any("[ONEDNN]" in key for key in keys)}
    # Where an operator has another name in old-style programs, the table has that one.
    return frozenset(found | {kernel_name(name) for name in found})
