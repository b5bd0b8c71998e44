"""Converters beside calls of Paddle's kernels in functions, one type of operators at a time."""

from __future__ import annotations

import inspect
import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import paddle
import paddle.nn.functional as F

from benchmarks import report
from benchmarks.options import Progress
from paddle_ngraph.conversion.bridge import element_type
from paddle_ngraph.conversion.build import make_model
from paddle_ngraph.conversion.function_builder import FunctionBuilder
from paddle_ngraph.conversion.registry import all_converters
from paddle_ngraph.errors import NgraphError
from paddle_ngraph.ir.graph import Graph
from paddle_ngraph.partitioning import program_pass

COLUMNS = 64
ROWS = (4, 1024)
# A function has as many operators, each with an input of its own, so that its own cost is small.
COPIES = 8
PAYS = 1.2
MAX_ELEMENTS = 1_000_000
Build = Callable[[Any], Any]
# Operators with attributes or with other operands than tensors of one shape.
WITH_ATTRIBUTES: dict[str, Build] = {
    "argmax": lambda x: paddle.argmax(x, 1),
    "argsort": lambda x: paddle.argsort(x, 1),
    "batch_norm": lambda x: F.batch_norm(
        x, paddle.zeros([COLUMNS]), paddle.ones([COLUMNS]), paddle.ones([COLUMNS])
    ),
    "clip": lambda x: paddle.clip(x, -0.5, 0.5),
    "concat": lambda x: paddle.concat([x, x], 1),
    "cumprod": lambda x: paddle.cumprod(x, 1),
    "cumsum": lambda x: paddle.cumsum(x, 1),
    "diag_embed": lambda x: paddle.diag_embed(x[:, :8]),
    "diagonal": lambda x: paddle.diagonal(paddle.reshape(x, [-1, 8, 8]), 0, 1, 2),
    "expand": lambda x: paddle.expand(x, [2, *x.shape]),
    "flip": lambda x: paddle.flip(x, [1]),
    "gather": lambda x: paddle.gather(x, paddle.to_tensor([3, 0, 2, 1]), 1),
    "index_select": lambda x: paddle.index_select(x, paddle.to_tensor([3, 0, 2, 1]), 1),
    "layer_norm": lambda x: F.layer_norm(x, [COLUMNS]),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "logsumexp": lambda x: paddle.logsumexp(x, 1),
    "max": lambda x: paddle.max(x, 1),
    "mean": lambda x: paddle.mean(x, 1),
    "one_hot": lambda x: F.one_hot(paddle.argmax(x, 1), COLUMNS),
    "p_norm": lambda x: paddle.linalg.norm(x, 2, 1),
    "pad": lambda x: F.pad(x, [0, 0, 3, 3]),
    "pixel_shuffle": lambda x: F.pixel_shuffle(paddle.reshape(x, [-1, 4, 4, 4]), 2),
    "prod": lambda x: paddle.prod(x, 1),
    "roll": lambda x: paddle.roll(x, 3, 1),
    "softmax": lambda x: F.softmax(x, 1),
    "split": lambda x: paddle.split(x, 4, 1),
    "stack": lambda x: paddle.stack([x, x], 1),
    "strided_slice": lambda x: paddle.strided_slice(x, [1], [0], [COLUMNS], [3]),
    "sum": lambda x: paddle.sum(x, 1),
    "take_along_axis": lambda x: paddle.take_along_axis(
        x, paddle.to_tensor(np.arange(8).reshape(1, 8)), 1
    ),
    "tile": lambda x: paddle.tile(x, [1, 2]),
    "topk": lambda x: paddle.topk(x, 5, 1),
    "transpose": lambda x: paddle.transpose(x, [1, 0]),
    "tril": lambda x: paddle.tril(x),
    "unfold": lambda x: F.unfold(paddle.reshape(x, [-1, 1, 8, 8]), 3),
    "where": lambda x: paddle.where(x > 0, x, x * 0.5),
}
ABOUT = f"""\
How many times as fast a function computes an operator by its converter as by a call of Paddle's
kernel, on one thread, in turns: the median of the ratios of processor time, for tensors of
{" and ".join(f"{rows} x {COLUMNS}" for rows in ROWS)}. **Bold**: at least {PAYS}. A converter that
does not reach {PAYS} alone may be there for what a kernel call lacks: fusion with its neighbours,
threads, dynamic sizes that follow in any way, known contents, and int64 in 32 bits without a copy.
Measured are all types of converters that take one or two tensors and no attributes without a
default, and some others."""


def measure(options: Namespace) -> None:
    """Measures the converters; writes ``converters.md`` and ``.json``."""
    samples = 3 if options.quick else 15
    paddle.enable_static()
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
    builds = {**dict(_sampled()), **WITH_ATTRIBUTES}
    ratios: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    try:
        with Progress("converters", len(builds)) as progress:
            for name, build in sorted(builds.items()):
                try:
                    ratios[name] = [ratio(name, build, rows, samples) for rows in ROWS]
                except NgraphError as error:
                    refused[name] = str(error)
                progress.done(f"{name}: {ratios.get(name, refused.get(name))}")
    finally:
        paddle.set_flags(before)
        paddle.disable_static()
    write(options.output, ratios, refused)


def write(folder: Path, ratios: Mapping[str, Sequence[float]], refused: Mapping[str, str]) -> None:
    """Writes the page and its data.

    Args:
        folder: The output folder.
        ratios: For each operator the ratio of each size.
        refused: Why the other operators were not measured.
    """
    cells = {name: ", ".join(map(_cell, each)) for name, each in ratios.items()}
    title = ", ".join(f"{rows} x {COLUMNS}" for rows in ROWS)
    data = {"ratios": ratios, "refused": refused}
    report.write(folder, "converters", "Converters beside kernels", [ABOUT], data, {title: cells})


def ratio(name: str, build: Build, rows: int, samples: int) -> float:
    """How many times as fast the converter of an operator is as a call of its kernel.

    Args:
        name: The name of the operator.
        build: Adds the operator to a program, given its input ``[rows, COLUMNS]``.
        rows: The size of the input.
        samples: The number of turns.

    Raises:
        NgraphError: The operator has no converter for this input, or its kernel is not called.
    """
    graph = _graph_of(build, rows)
    specs = [spec for op in graph.ops for spec in op.output_specs()]
    if any(math.prod(spec.shape) > MAX_ELEMENTS for spec in specs):
        raise NgraphError(f"a result has more than {MAX_ELEMENTS:,} elements")
    called = _calling(graph, f"pd_op.{name}")
    converter, kernel = _runner(graph, rows), _runner(called, rows)
    return statistics.median(_seconds(kernel) / _seconds(converter) for _ in range(samples))


def _sampled() -> Iterator[tuple[str, Build]]:
    """Yields the operators with converters that take one tensor or two, and their programs."""
    for type in all_converters():
        name = type.removeprefix("pd_op.")
        function = next((getattr(m, name) for m in (paddle, F) if callable(getattr(m, name, 0))), 0)
        operands = _operands_of(function) if function else 0
        if not operands or name.endswith(("_", "_grad")):
            continue

        # The bound values are those of this round.
        def build(x: Any, function: Any = function, operands: int = operands) -> Any:
            return function(*[x] * operands)

        try:
            graph = _graph_of(build, ROWS[0])
        except Exception:
            continue  # Paddle takes other tensors
        if any(op.type == type for op in graph.ops):
            yield name, build


def _operands_of(function: Any) -> int:
    """The number of arguments of a function without a default; 0 if they are no tensors."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = [each.name for each in parameters if each.default is each.empty]
    return len(needed) if needed in (["x"], ["input"], ["x", "y"]) else 0


def _graph_of(build: Build, rows: int) -> Graph:
    """The graph of a program of several operators of one kind."""
    main = paddle.static.Program()
    with paddle.static.program_guard(main, paddle.static.Program()):
        for number in range(COPIES):
            build(paddle.static.data(f"x{number}", [rows, COLUMNS], "float32"))
    intervals = program_pass.dry_run(main).intervals
    if len(intervals) != 1 or intervals[0].graph is None:
        raise NgraphError("the converter refuses it")
    return intervals[0].graph


def _calling(graph: Graph, type: str) -> Graph:
    """The graph with calls of kernels in place of the operators of one type.

    Raises:
        NgraphError: There are none.
    """
    if not any(op.type == type for op in graph.ops):
        raise NgraphError("the program has another operator")
    return replace(
        graph, ops=[replace(op, called=True) if op.type == type else op for op in graph.ops]
    )


def _runner(graph: Graph, rows: int) -> Callable[[], None]:
    specs = [*graph.inputs, *graph.states]
    signature = [(element_type(spec.dtype).get_type_name(), [rows, COLUMNS]) for spec in specs]
    draft = make_model(FunctionBuilder(graph, signature))
    settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "0"}  # on the calling thread
    request = ov.Core().compile_model(draft.model, "CPU", settings).create_infer_request()
    generator = np.random.default_rng(0)
    for number in range(len(draft.positions)):
        array = generator.uniform(0.1, 0.9, (rows, COLUMNS)).astype("float32")
        request.set_input_tensor(number, ov.Tensor(array))
    request.infer()
    return lambda: request.infer() and None


def _seconds(run: Callable[[], None]) -> float:
    """Seconds of some runs, in processor time of the thread, which excludes other processes."""
    begin = time.thread_time()
    for _ in range(3):
        run()
    return time.thread_time() - begin


def _cell(ratio: float) -> str:
    return f"**{ratio:.2f}**" if ratio >= PAYS else f"{ratio:.2f}"
