"""Cost model: a subgraph that Paddle runs very quickly falls back.

Running one engine operator costs 20 to 50 us before it computes anything
(``python -m benchmarks overhead``), as much as Paddle needs for some operators on small tensors. A
subgraph is converted if Paddle would take at least ``FLAGS_ngraph_min_interval_us`` for it, by the
estimate below. The estimate uses rounded measurements, and is meaningless for long subgraphs, which
always pay off.

This threshold is for subgraphs among Paddle's own operators. A program of one subgraph runs without
Paddle's work around operators (executor/call_cache.py), which takes longer than the operators
themselves. Such a program pays off once it runs often enough to be compiled (executor/switch.py):
there the threshold does not apply.

An operator of a ProgramDesc program that the translation keeps costs about 0.13 ms more than in the
program as given, where Paddle runs it without Python. All subgraphs of a block have to pay for all
of these operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from paddle_ngraph import flags
from paddle_ngraph.conversion import kernel_calls
from paddle_ngraph.ir.graph import Graph, TensorSpec
from paddle_ngraph.ir.reasons import FallbackReason
from paddle_ngraph.paddle_private.names import kernel_name, phi_kernels
from paddle_ngraph.paddle_private.protocols import Program
from paddle_ngraph.partitioning.analysis.block_view import WHILE, BlockView, OpNode
from paddle_ngraph.settings import SETTINGS
from paddle_ngraph.utils.once import once

_MATMUL_PREFIXES = ("matmul", "conv", "bmm", "multi_dot", "depthwise_conv", "addmm", "einsum")


def native_us(graph: Graph, open_size: int = SETTINGS.typical_dimension_size) -> float:
    """Estimated microseconds of a subgraph run by Paddle.

    Args:
        graph: The subgraph.
        open_size: Assumed size of each dynamic dimension.
    """
    us = 0.0
    for op in graph.ops:
        specs = (*op.input_specs(), *op.output_specs())
        elements = sum(_elements(spec, open_size) for spec in specs)
        us += SETTINGS.dispatch_us_per_operator + elements / SETTINGS.accessed_elements_per_us
        inside = [native_us(block, open_size) for block in op.blocks]
        us += (
            SETTINGS.typical_loop_iterations * sum(inside)
            if op.type == WHILE
            else max(inside, default=0.0)
        )
    return us


def reason_against(
    graph: Graph, open_size: int | None = SETTINGS.typical_dimension_size
) -> str | None:
    """Why a subgraph falls back; ``None`` if it pays off, or if ``open_size`` is ``None``.

    A subgraph with bfloat16 is always converted: Paddle has few kernels for bfloat16 on CPUs, and
    some of them crash.
    """
    threshold = flags.get("ngraph_min_interval_us")
    if threshold <= 0 or open_size is None or graph.has_bfloat16():
        return None
    estimate = native_us(_without_kernel_calls(graph), open_size)
    if estimate >= threshold:
        return None
    return FallbackReason(
        f"its interval takes Paddle about {estimate:.0f} us, too little for the engine to pay "
        f"(FLAGS_ngraph_min_interval_us={threshold})",
        "FLAGS_ngraph_min_interval_us=0, where that pays",
    )


def reason_against_all(
    graphs: Sequence[Graph],
    legacy_operators: int,
    open_size: int | None = SETTINGS.typical_dimension_size,
) -> str | None:
    """Why a block with legacy operators falls back; ``None`` if its subgraphs pay for them.

    Args:
        graphs: All subgraphs of the block.
        legacy_operators: The number of its operators that run an operator of ProgramDesc.
        open_size: As for :func:`reason_against`.
    """
    if open_size is None or flags.get("ngraph_min_interval_us") <= 0 or not legacy_operators:
        return None
    estimate = sum(us_of_run(_without_kernel_calls(graph), open_size) for graph in graphs)
    least = SETTINGS.min_us_per_legacy_operator * legacy_operators
    if not graphs or estimate >= least or any(graph.has_bfloat16() for graph in graphs):
        return None
    return FallbackReason(
        f"all subgraphs take Paddle about {estimate:.0f} us, too little to pay for "
        f"{legacy_operators} operators that the translation keeps ({least:.0f} us)",
        "FLAGS_ngraph_min_interval_us=0, where that pays",
    )


def _without_kernel_calls(graph: Graph) -> Graph:
    """A subgraph or block without the operators that take as long in a function."""
    ops = [op for op in graph.ops if kernel_calls.find(op) is not kernel_calls.CONVERTER]
    return replace(
        graph,
        ops=[replace(op, blocks=list(map(_without_kernel_calls, op.blocks))) for op in ops],
    )


def us_of(view: BlockView, node: OpNode) -> float:
    """The estimated time of an operator on one core, in microseconds."""
    read = [elements_of(view, m) for vid in node.reads for m in view.members(vid)]
    written = [elements_of(view, vid) for vid in node.writes]
    us = (
        SETTINGS.dispatch_us_per_operator
        + (sum(read) + sum(written)) / SETTINGS.accessed_elements_per_us
    )
    return us + _matmul_us(node.type, read, written)


def us_of_run(graph: Graph, open_size: int) -> float:
    """Estimated microseconds of a subgraph on one core, matmuls included.

    Args:
        graph, open_size: As for :func:`native_us`.
    """
    us = native_us(graph, open_size)
    for op in graph.ops:
        read = [_elements(spec, open_size) for spec in op.input_specs()]
        us += _matmul_us(op.type, read, [_elements(s, open_size) for s in op.output_specs()])
    return us


def _matmul_us(op_type: str, read: Sequence[int], written: Sequence[int]) -> float:
    """Estimated microseconds of the multiplications of a matmul or convolution, by element counts.

    Args:
        op_type: The operator type.
        read, written: Numbers of elements of inputs and outputs.
    """
    if not _is_matmul_type(op_type) or len(read) < 2 or not written:
        return 0.0
    # The number of multiplications: for [M, K], [K, N] and [M, N] the root of their product is MKN.
    return math.sqrt(read[0] * read[1] * max(written)) / SETTINGS.multiplications_per_us


def elements_of(view: BlockView, vid: str) -> int:
    """The number of elements of a variable; 0 if it is not a dense tensor."""
    if not view.is_tensor(vid):
        return 0
    return math.prod(
        SETTINGS.typical_dimension_size if s < 0 else s for s in view.spec(vid, 0).shape
    )


def is_matmul_or_convolution(node: OpNode) -> bool:
    """Whether an operator is a matmul or a convolution."""
    return _is_matmul_type(node.type)


def _is_matmul_type(op_type: str) -> bool:
    return op_type.removeprefix("pd_op.").startswith(_MATMUL_PREFIXES)


def _elements(spec: TensorSpec, open_size: int) -> int:
    return math.prod(open_size if size < 0 else size for size in spec.shape)


def dynamic_axes(programs: Iterable[Program]) -> list[tuple[str, int]]:
    """(name of the feed, axis) for each dynamic dimension of the feeds."""
    return [
        (op.attrs()["name"], axis)
        for program in programs
        for op in program.global_block().ops
        if op.name() in ("pd_op.data", "pd_op.feed")
        for axis, size in enumerate(op.results()[0].shape)
        if size < 0
    ]


def is_faster_than_onednn(converted: int, intervals: int, kernels: int) -> bool:
    """Whether a predictor whose configuration enables oneDNN is faster through the engine.

    Args:
        converted: The number of operators in subgraphs.
        intervals: The number of subgraphs.
        kernels: The number of fallback operators for which Paddle has a kernel of oneDNN.
    """
    return (
        SETTINGS.onednn_gain_per_operator * converted
        >= SETTINGS.onednn_boundary_cost * intervals + SETTINGS.onednn_kernel_loss * kernels
    )


def count_onednn_kernels(view: BlockView, nodes: Iterable[OpNode]) -> int:
    """The number of operators of a block for which Paddle has a kernel of oneDNN."""
    return sum(
        has_onednn_kernel(node.type, view.spec(vid, 0).dtype)
        for node in nodes
        if (vid := _first_tensor(view, node)) is not None
    )


def _first_tensor(view: BlockView, node: OpNode) -> str | None:
    """The tensor whose dtype selects Paddle's kernel of an operator; ``None`` if it has none."""
    variables = (m for vid in (*node.reads, *node.writes) for m in view.members(vid))
    return next(filter(view.is_tensor, variables), None)


def has_onednn_kernel(op_type: str, dtype: str) -> bool:
    """Whether Paddle has a kernel of oneDNN for operators of this type and dtype."""
    name, kernels = op_type.removeprefix("pd_op.").removesuffix("_"), _onednn_kernels()
    return any(dtype in kernels.get(each, ()) for each in (name, kernel_name(name)))


@once
def _onednn_kernels() -> Mapping[str, frozenset[str]]:
    """The dtypes for which Paddle has kernels of oneDNN, by the name of the kernel."""
    found = {}
    for name, keys in phi_kernels("all").items():
        kernels = (key.strip("()").split(", ") for key in keys)
        dtypes = frozenset(dtype for _, layout, dtype in kernels if layout == "ONEDNN")
        if dtypes:
            found[name] = dtypes
    return found
