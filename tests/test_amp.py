"""Paddle's own mixed precision in bfloat16: its programs run through the engine, in intervals.

Natively many of them end the process on CPUs, so they are judged by float32 runs and by NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import paddle_ngraph
from paddle_ngraph.function import processor
from tests.programs import Program, floats
from tests.test_mixed_precision import rounded


class Perceptron(nn.Layer):
    """Sizes above those from which products are worth bfloat16's units."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 16)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        return self.last(F.gelu(self.norm(self.first(x))))


class Convolutions(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2D(16, 32, 3, padding=1), nn.Conv2D(32, 32, 3, stride=2)
        self.norm, self.last = nn.BatchNorm2D(32), nn.Linear(32, 10)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.last(F.relu(self.second(x)).mean([2, 3]))


Case = tuple[Callable[[], nn.Layer], list[int]]
NETWORKS: dict[str, Case] = {
    "perceptron": (Perceptron, [64, 64]),
    "convolutions": (Convolutions, [16, 16, 12, 12]),
}


def training(
    make: Callable[[], nn.Layer],
    shape: list[int],
    amp: bool = True,
    optimizer: Callable[..., Any] = paddle.optimizer.AdamW,
    **lists: Any,
) -> Program:
    """A program that trains; AMP as Paddle's users write it."""

    def build() -> Any:
        paddle.seed(7)
        x = paddle.static.data("x", shape)
        y = paddle.static.data("y", [shape[0], 1], "int64")
        network = make()
        minimizer = optimizer(1e-3, parameters=network.parameters())
        with paddle.amp.auto_cast(amp, dtype="bfloat16", **lists):
            out = network(x)
            loss = F.cross_entropy(out.astype("float32"), y)
        if amp:
            minimizer = paddle.static.amp.decorate(
                minimizer, level="O1", dtype="bfloat16", init_loss_scaling=1.0
            )
        minimizer.minimize(loss)
        return [loss, out]

    return Program(build)


def batch(shape: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    labels = np.random.default_rng(seed).integers(0, 10, [shape[0], 1])
    x = floats(*shape, seed=seed)
    x.reshape(shape[0], -1)[np.arange(shape[0]), labels[:, 0]] += 3.0
    return {"x": x, "y": labels}


def ran() -> int:
    """How many intervals have run; every operator is in one, and Paddle computed none."""
    stats = paddle_ngraph.stats()
    assert stats["ops_native"] == 0 and stats["native_runs"] == 0, stats["native_by_type"]
    return int(stats["engine_runs"])


@pytest.mark.parametrize("name", NETWORKS)
def test_o1_trains_in_one_interval(name: str, kinds) -> None:
    make, shape = NETWORKS[name]
    programs = [training(make, shape, amp) for amp in (True, False)]
    casts = [op for op in programs[0].main.global_block().ops if op.name() == "pd_op.cast"]
    assert len(casts) >= 8
    losses: list[list[float]] = [[], []]
    for number in range(20):
        for program, found in zip(programs, losses):
            found.append(float(program.run(**batch(shape, number % 2))[0]))
    assert ran() == 40
    ours, exact = map(np.array, losses)
    assert 0 < abs(ours[0] - exact[0]) < 2e-2 * exact[0]
    assert ours[-1] < 0.6 * ours[0] and abs(ours[-1] - exact[-1]) < 0.05 * exact[0]
    # The number of a rounding that nothing reads is not computed.
    units = processor.has_bfloat16()
    gemms = kinds["Bfloat16Gemm"] + kinds["ToBfloat16"]
    assert (gemms > 0) == units and kinds["RoundToBfloat16"] > 0


_erf = np.vectorize(math.erf)


def test_the_first_loss_is_numpys() -> None:
    """Operands and results of products are rounded, and nothing else."""
    make, shape = NETWORKS["perceptron"]
    program, feed = training(make, shape), batch(shape)
    given = {name: program.variable(name) for name in ("linear_0.w_0", "linear_1.w_0")}
    assert not any(program.variable(f"linear_{number}.b_0").any() for number in (0, 1))

    def product(x: np.ndarray, name: str) -> np.ndarray:
        return rounded(rounded(x).astype("float64") @ rounded(given[name])).astype("float64")

    h = product(feed["x"], "linear_0.w_0")
    h = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    h = product(0.5 * h * (1 + _erf(h / np.sqrt(2))), "linear_1.w_0")
    loss, out = program.run(**feed)
    assert ran() == 1
    # Sums on two sides of a tie, or of an operand's tie, are another number of bfloat16.
    np.testing.assert_allclose(out, h, atol=2e-2)
    assert np.mean(out != h) < 0.05
    chosen = np.take_along_axis(h, feed["y"], 1)
    expected = np.mean(np.log(np.exp(h).sum(-1, keepdims=True)) - chosen)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
