"""Networks that plans are tested with."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

import paddle_ngraph
from tests.programs import Program

WIDTH = 16


def tower(hidden: Any, dropout: float = 0.0) -> Any:
    """Three layers, each with a ReLU, and dropout if it is asked for."""
    for _ in range(3):
        hidden = F.relu(nn.Linear(WIDTH, WIDTH)(hidden))
        if dropout:
            hidden = F.dropout(hidden, dropout)
    return hidden


def data() -> Any:
    return paddle.static.data("x", [-1, WIDTH], "float32")


def two_towers(dropout: float = 0.0) -> list[Any]:
    """For x [-1, 16]: the sum of a linear layer on both, and one tower."""
    x = data()
    first, second = tower(x, dropout), tower(x, dropout)
    both = nn.Linear(2 * WIDTH, 4)(paddle.concat([first, second], 1))
    return [paddle.mean(both**2), first]


def training(dropout: float = 0.0) -> list[Any]:
    """:func:`two_towers`, trained by Adam."""
    loss, first = two_towers(dropout)
    paddle.optimizer.Adam(0.01).minimize(loss)
    return [loss, first]


class Planned:
    """A program and its plan; both sides have variables of their own.

    Args:
        build: As for ``Program``.
        default_devices: As for ``paddle_ngraph.execution_plan``.
    """

    def __init__(self, build: Any, default_devices: Any = None) -> None:
        self.native, self.engine = Program(build), Program(build)
        fetches = self.engine.fetches
        self.plan = paddle_ngraph.execution_plan(self.engine.main, default_devices, fetches)

    def run(self, **feed: np.ndarray) -> list[np.ndarray]:
        """One run of the planned program, the engine switched off."""
        with paddle.static.scope_guard(self.engine.scope):
            return self.engine.executor.run(
                self.plan.program, feed=feed, fetch_list=self.plan.fetches
            )

    def both(self, seed: int | None = None, **feed: np.ndarray) -> list[np.ndarray]:
        """One run each; asserts that they agree, and that the engine ran."""
        if seed is not None:
            paddle.seed(seed)
        expected = self.native.run(engine=False, **feed)
        if seed is not None:
            paddle.seed(seed)
        before = paddle_ngraph.stats()["engine_runs"]
        results = self.run(**feed)
        assert paddle_ngraph.stats()["engine_runs"] > before, "the engine did not run"
        for one, other in zip(expected, results):
            np.testing.assert_allclose(other, one, rtol=2e-5, atol=2e-6)
        return results
