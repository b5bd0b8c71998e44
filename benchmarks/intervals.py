"""Cost of a subgraph compared with Paddle's oneDNN: networks partitioned into pieces.

``paddle_ngraph.partitioning.cost_model.pays_over_onednn`` is derived from the table.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker

PIECES = 8
DEPTHS = (1, 2, 4, 8, 16)
# Channels and side of the images; the work of a convolution grows with both.
SIZES = ((8, 14), (32, 28))
BETWEEN = ("copysign", "depthwise_conv2d")
TOLERANCE = 1e-3
_ALONE = {"FLAGS_ngraph_num_threads": "1", "OMP_NUM_THREADS": "1"}
EXPLANATION = f"""\
A network of {PIECES} pieces, each of so many operators (3 x 3 convolution, sum with a bias and
ReLU in turns), with an operator between them that runs natively: `copysign`, for which oneDNN
has no kernel either, or a depthwise convolution, for which it has one (the engine has a converter,
which is turned off). *Pieces*: through the engine, one interval each, the operators between
them native and without oneDNN. *oneDNN*: Paddle Inference with oneDNN. Milliseconds of a run on one
thread, the fastest of each turn and the median of these; the last column is what each interval
gains, in microseconds."""


@dataclass(frozen=True)
class Chain:
    """A network of ``PIECES`` pieces.

    Attributes:
        channels, side: Size of the images.
        depth: Number of operators of a piece.
        between: The type of the operator between two pieces.
    """

    channels: int
    side: int
    depth: int
    between: str

    def feed(self) -> Any:
        """Returns an image."""
        shape = (1, self.channels, self.side, self.side)
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)

    def save(self, folder: Path) -> str:
        """Saves the network. Returns the path without extensions."""
        import paddle

        paddle.enable_static()
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", list(self.feed().shape), "float32")
            value = x
            for _ in range(PIECES):
                value = self._piece(self._between(value, x))
        executor = paddle.static.Executor(paddle.CPUPlace())
        scope = paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            paddle.seed(0)
            executor.run(startup)
            prefix = str(folder / "chain")
            paddle.static.save_inference_model(prefix, [x], [value], executor, program=main)
        return prefix

    def _between(self, value: Any, x: Any) -> Any:
        import paddle

        if self.between == "copysign":
            return paddle.copysign(value, x)
        layer = paddle.nn.Conv2D(
            self.channels, self.channels, 3, padding=1, groups=self.channels, bias_attr=False
        )
        return layer(value)

    def _piece(self, value: Any) -> Any:
        import paddle

        makers = (self._convolve, self._shift, paddle.nn.functional.relu)
        for number in range(self.depth):
            value = makers[number % len(makers)](value)
        return value

    def _convolve(self, value: Any) -> Any:
        from paddle import nn

        return nn.Conv2D(self.channels, self.channels, 3, padding=1, bias_attr=False)(value)

    def _shift(self, value: Any) -> Any:
        import paddle

        bias = paddle.static.create_parameter([1, self.channels, 1, 1], "float32")
        return value + bias


class Runner:
    """Runs a network in a separate process."""

    def __init__(self, chain: Chain, engine: bool) -> None:
        import paddle

        self._folder = tempfile.TemporaryDirectory()
        prefix = chain.save(Path(self._folder.name))
        config = paddle.inference.Config(f"{prefix}.json", f"{prefix}.pdiparams")
        config.disable_glog_info()
        config.set_cpu_math_library_num_threads(1)
        config.disable_onednn() if engine else config.enable_onednn()
        if engine:
            import paddle_ngraph
            from paddle_ngraph.conversion.registry import unregister

            unregister(f"pd_op.{chain.between}")
            # Each piece is a subgraph, however short, since the cost of one is measured.
            paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0})
            paddle_ngraph.enable()
        self._predictor = paddle.inference.create_predictor(config)
        (name,) = self._predictor.get_input_names()
        self._input = self._predictor.get_input_handle(name)
        self._input.copy_from_cpu(chain.feed())
        if engine:
            self._predictor.run()
            runs = paddle_ngraph.stats()["engine_runs"]
            if runs != PIECES:
                raise PeerError(f"{runs} intervals ran, not {PIECES}")

    def result(self) -> Any:
        """Returns the result of the network."""
        self._predictor.run()
        (name,) = self._predictor.get_output_names()
        return self._predictor.get_output_handle(name).copy_to_cpu()

    def measure(self, seconds: float) -> float:
        """Returns the time of the fastest run, in milliseconds."""
        end = time.perf_counter() + seconds
        times: list[float] = []
        while time.perf_counter() < end or len(times) < 8:
            start = time.perf_counter()
            self._predictor.run()
            times.append(time.perf_counter() - start)
        return 1e3 * min(times)


@dataclass
class Cell:
    """The samples of both variants of one network, in milliseconds."""

    chain: Chain
    engine: list[float] = field(default_factory=list)
    onednn: list[float] = field(default_factory=list)

    @property
    def gain_us(self) -> float:
        """The time that a subgraph saves, in microseconds: the median over the samples."""
        pairs = zip(self.onednn, self.engine)
        return statistics.median(1e3 * (theirs - ours) / PIECES for theirs, ours in pairs)


def measure(options: Namespace) -> None:
    """Measures the networks; writes ``intervals.md`` and ``.json``."""
    chains = [
        Chain(*size, depth, between) for between in BETWEEN for size in SIZES for depth in DEPTHS
    ]
    if options.quick:
        chains = chains[:2]
    cells = []
    with Progress("intervals", len(chains)) as progress:
        for chain in chains:
            cells.append(_cell(chain, options))
            progress.done(f"{chain}: {cells[-1].gain_us:.0f} us gained by an interval")
            _write(cells, options.output)


def _cell(chain: Chain, options: Namespace) -> Cell:
    cell = Cell(chain)
    with ExitStack() as stack:
        variants = {name: stack.enter_context(Worker(_ALONE)) for name in ("onednn", "engine")}
        for name, worker in variants.items():
            worker.hold(Runner, chain, name == "engine")
        theirs, ours = (worker.ask("result") for worker in variants.values())
        if not np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max():
            raise PeerError(f"{chain}: the two ways do not compute the same")
        for _ in range(1 if options.quick else options.rounds):
            for name, worker in variants.items():
                getattr(cell, name).append(worker.ask("measure", 0.1 if options.quick else 0.3))
    return cell


def _write(cells: Sequence[Cell], folder: Path) -> None:
    body = [
        [
            cell.chain.between,
            f"{cell.chain.channels} x {cell.chain.side} x {cell.chain.side}",
            str(cell.chain.depth),
            f"{statistics.median(cell.engine):.2f}",
            f"{statistics.median(cell.onednn):.2f}",
            f"{cell.gain_us:.0f}",
        ]
        for cell in cells
    ]
    header = [
        "between",
        "pictures",
        "operators of a piece",
        "pieces (ms)",
        "oneDNN (ms)",
        "gain (us)",
    ]
    data = {"cells": [{**vars(cell), "chain": vars(cell.chain)} for cell in cells]}
    sections = [EXPLANATION, report.table(header, body)]
    title = "gain (us): between, pictures, operators of a piece"
    beside = {title: {", ".join(row[:3]): row[-1] for row in body}}
    report.write(folder, "intervals", "Intervals beside oneDNN", sections, data, beside)
