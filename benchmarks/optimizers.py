"""Optimizer updates in dynamic mode: by Paddle, through the engine, and by PyTorch.

No framework is imported here: each variant runs in a separate process.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import report, works
from benchmarks.comparison import Pace
from benchmarks.options import Progress
from benchmarks.worker import PeerError, Worker
from benchmarks.works import Array

MOMENTUM, ADAM, CLIPPED = "Momentum", "Adam", "AdamW, clipped by norm"
OPTIMIZERS = (MOMENTUM, ADAM, CLIPPED)
NETWORKS = {"mobilenet_v2": "MobileNetV2", "resnet18": "ResNet-18", "bert": "BERT-base"}
RATE, DECAY, NORM = 1e-3, 0.01, 1.0
PADDLE, ENGINE, TORCH = "Paddle", "engine", "PyTorch"
COMPARED = 64  # elements of each parameter
STEPS = 3
TOLERANCE = {PADDLE: 0.0, ENGINE: 1e-4, TORCH: 1e-3}  # relative to the change of the parameters
ABOUT = """\
`optimizer.step()` on the parameters of a network, whose gradients are there: milliseconds, median
of {rounds} turns, and how many times as long as the engine's it takes. *engine*: with no other
change than `paddle_ngraph.enable()`. PyTorch's optimizers are fused. What is computed is compared
with native Paddle's."""


class Steps(ABC):
    """An optimizer with parameters and gradients, in a separate process."""

    def __init__(self) -> None:
        for _ in range(STEPS):
            self.step()
        self._first = self.numbers()

    @abstractmethod
    def step(self) -> None:
        """Updates all parameters once."""

    @abstractmethod
    def numbers(self) -> Array:
        """Returns some elements of each parameter."""

    def results(self) -> Array:
        """Returns :meth:`numbers` after the first updates."""
        return self._first

    def measure(self, seconds: float) -> float:
        """Runs for ``seconds``, at least three updates; returns the median milliseconds."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self.step()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)


def _random_tensors(shapes: Sequence[Sequence[int]]) -> list[tuple[Array, Array]]:
    """Returns random parameters and gradients."""
    generator = np.random.default_rng(0)
    draw = generator.standard_normal
    return [(draw(s, np.float32), draw(s, np.float32)) for s in map(tuple, shapes)]


class PaddleSteps(Steps):
    """Paddle's optimizer, with the engine on or off."""

    def __init__(self, variant: str, optimizer: str, shapes: Sequence[Sequence[int]]) -> None:
        import paddle

        import paddle_ngraph

        self._parameters = []
        for number, gradient in _random_tensors(shapes):
            made = paddle.create_parameter(number.shape, "float32")
            made.set_value(number)
            made.grad = paddle.to_tensor(gradient)
            self._parameters.append(made)
        given: dict[str, Any] = {"learning_rate": RATE, "parameters": self._parameters}
        if optimizer == MOMENTUM:
            self._optimizer = paddle.optimizer.Momentum(momentum=0.9, **given)
        elif optimizer == ADAM:
            self._optimizer = paddle.optimizer.Adam(**given)
        else:
            clip = paddle.nn.ClipGradByGlobalNorm(NORM)
            self._optimizer = paddle.optimizer.AdamW(weight_decay=DECAY, grad_clip=clip, **given)
        if variant == ENGINE:
            paddle_ngraph.enable()
        super().__init__()
        taken = paddle_ngraph.stats()["optimizer_steps"]
        if taken != (STEPS * len(shapes) if variant == ENGINE else 0):
            raise PeerError(f"{variant}: {taken} steps by the engine")

    def step(self) -> None:
        self._optimizer.step()

    def numbers(self) -> Array:
        parts = [each.flatten()[:COMPARED].numpy() for each in self._parameters]
        found: Array = np.concatenate(parts)
        return found


class TorchSteps(Steps):
    """PyTorch's fused optimizer."""

    def __init__(self, variant: str, optimizer: str, shapes: Sequence[Sequence[int]]) -> None:
        import torch

        self._parameters = []
        for number, gradient in _random_tensors(shapes):
            made = torch.nn.Parameter(torch.from_numpy(number))
            made.grad = torch.from_numpy(gradient)
            self._parameters.append(made)
        self._clips = optimizer == CLIPPED
        self._clip = torch.nn.utils.clip_grad_norm_
        if optimizer == MOMENTUM:
            self._optimizer = torch.optim.SGD(self._parameters, RATE, momentum=0.9, fused=True)
        elif optimizer == ADAM:
            self._optimizer = torch.optim.Adam(self._parameters, RATE, fused=True)
        else:
            self._optimizer = torch.optim.AdamW(
                self._parameters, RATE, weight_decay=DECAY, fused=True
            )
        super().__init__()

    def step(self) -> None:
        if self._clips:
            self._clip(self._parameters, NORM)
        self._optimizer.step()

    def numbers(self) -> Array:
        parts = [each.detach().flatten()[:COMPARED].numpy() for each in self._parameters]
        found: Array = np.concatenate(parts)
        return found


def shapes_of(network: str) -> list[list[int]]:
    """Returns the shapes of a network's parameters."""
    import paddle

    if network == "bert":
        size = works.BERT
        layer = paddle.nn.TransformerEncoderLayer(size.width, size.heads, size.hidden)
        encoder = paddle.nn.TransformerEncoder(layer, size.layers)
        tables = (size.vocabulary, works.BERT_POSITIONS, works.BERT_SEGMENTS)
        return [[rows, size.width] for rows in tables] + [p.shape for p in encoder.parameters()]
    return [p.shape for p in getattr(paddle.vision.models, network)().parameters()]


@dataclass
class Row:
    """One optimizer on one network: milliseconds of each sample, by variant."""

    name: str
    turns_ms: dict[str, list[float]] = field(default_factory=dict)

    def cell(self, variant: str) -> str:
        """Formats milliseconds and, except for the engine, the ratio to the engine."""
        if variant not in self.turns_ms:
            return "-"
        times = self.turns_ms[variant]
        if variant == ENGINE:
            return f"{statistics.median(times):.2f}"
        ratio = statistics.median(t / ours for t, ours in zip(times, self.turns_ms[ENGINE]))
        return f"{statistics.median(times):.2f} ({ratio:.2f})"


def measure(options: Namespace) -> None:
    """Measures the optimizers; writes ``optimizers.md`` and ``.json``."""
    pace = Pace(1, 0.05) if options.quick else Pace(options.rounds, 1.0)
    networks = ["mobilenet_v2"] if options.quick else list(NETWORKS)
    variants: dict[str, type[Steps]] = {PADDLE: PaddleSteps, ENGINE: PaddleSteps}
    if find_spec("torch") is not None:
        variants[TORCH] = TorchSteps
    rows = []
    with Progress("optimizers", len(networks) * len(OPTIMIZERS)) as progress:
        for network in networks:
            with Worker({}) as worker:
                shapes = worker.call(shapes_of, network)
            size = sum(int(np.prod(shape)) for shape in shapes)
            for optimizer in OPTIMIZERS:
                row = Row(f"{NETWORKS[network]} ({size / 1e6:.1f} million), {optimizer}")
                progress.say(row.name)
                _alternate(
                    row,
                    {
                        variant: (variants[variant], variant, optimizer, shapes)
                        for variant in variants
                    },
                    pace,
                )
                progress.done(f"{row.name}: {', '.join(f'{w} {row.cell(w)}' for w in variants)}")
                rows.append(row)
    table = report.table(
        ["", *(f"{variant} (ms)" for variant in variants)],
        [[row.name, *(row.cell(variant) for variant in variants)] for row in rows],
    )
    data = {"quick": options.quick, "rows": [vars(row) for row in rows]}
    sections = [ABOUT.format(rounds=pace.rounds), table]
    report.write(options.output, "optimizers", "Optimizers of dynamic mode", sections, data)


def _alternate(row: Row, starts: dict[str, tuple[Any, ...]], pace: Pace) -> None:
    with ExitStack() as stack:
        workers = {variant: stack.enter_context(Worker({})) for variant in starts}
        found = {}
        for variant, worker in workers.items():
            worker.hold(*starts[variant])
            found[variant] = worker.ask("results")
            off = float(np.abs(found[variant] - found[PADDLE]).max()) / (STEPS * RATE)
            if off > TOLERANCE[variant]:
                raise PeerError(f"{row.name}, {variant}: off by {off:.1e}")
        for _ in range(pace.rounds):
            for variant, worker in workers.items():
                row.turns_ms.setdefault(variant, []).append(worker.ask("measure", pace.seconds))
