"""A physics-informed network: a training step that needs second derivatives of its output."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import numpy as np
import paddle
from paddle import nn

import paddle_ngraph
from benchmarks import report
from benchmarks.comparison import Pace
from benchmarks.options import Progress
from benchmarks.pinn_equation import (
    POINTS,
    QUICK_POINTS,
    RATE,
    WIDTHS,
    Torch,
    loss_of,
    points,
    weights,
)
from benchmarks.to_static import Row, Variant, alternate
from benchmarks.works import Array

DYNAMIC = "dynamic"
PROGRAM, PROGRAM_BY_ENGINE = "program", "program, engine"
TO_STATIC, TO_STATIC_BY_ENGINE = "to_static", "to_static, engine"
TORCH = "PyTorch"
INTRODUCTION = """\
The equation of Allen and Cahn, `u_t = 0.0001 u_xx - 5 u^3 + 5 u`, by a network of 4 layers of 128
with tanh: a step takes {points} points (x, t), the square of the residual there and of the error at
t = 0, and a step of Adam. The derivatives of u are gradients inside the network, so the step
contains third derivatives."""
ABOUT = """\
*program*: a static program with `paddle.static.gradients`, natively and through the engine.
*to_static*: `paddle.jit.to_static` of a layer that calls `paddle.grad`, natively and through the
engine; the optimizer is Paddle's. *dynamic*: native Paddle, operator by operator. *PyTorch*: its
eager mode with `create_graph`, on all cores. Each way has a process of its own, and they take
turns: medians over {rounds} turns of the median step of a turn. A ratio says how many times as long
as *{reference}* it takes: the median of the ratios of the turns. All start from equal weights, and
their first losses are compared with those of native Paddle."""


class Residual(nn.Layer):  # type: ignore[misc]
    """The network; a call returns the loss at points.

    Args:
        gradient: See :func:`loss_of`.
    """

    def __init__(self, gradient: Callable[..., Any]) -> None:
        super().__init__()
        self._gradient = gradient
        layers: list[Any] = []
        for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.network = nn.Sequential(*layers[:-1])

    def forward(self, x: Any, t: Any) -> Any:
        """The loss at points of shape [points, 1]."""
        x.stop_gradient = t.stop_gradient = False
        return loss_of(self.network, x, t, paddle, self._gradient)


def _dynamic_gradient(y: Any, x: Any) -> Any:
    return paddle.grad([y], [x], create_graph=True)[0]


def _static_gradient(y: Any, x: Any) -> Any:
    return paddle.static.gradients([y], [x])[0]


class Layer(Variant):
    """A layer of dynamic mode, with or without ``to_static``."""

    def __init__(self, variant: str, is_quick: bool) -> None:
        paddle_ngraph.enable() if variant == TO_STATIC_BY_ENGINE else paddle_ngraph.disable()
        layer = Residual(_dynamic_gradient)
        for parameter, value in zip(layer.parameters(), weights()):
            parameter.set_value(value)
        self._loss = layer if variant == DYNAMIC else paddle.jit.to_static(layer, full_graph=True)
        self._optimizer = paddle.optimizer.Adam(RATE, parameters=layer.parameters())
        self._points = [paddle.to_tensor(array) for array in points(is_quick)]
        super().__init__()

    def run(self) -> Array:
        loss = self._loss(*self._points)
        loss.backward()
        self._optimizer.step()
        self._optimizer.clear_grad()
        return np.array(loss)


class Program(Variant):
    """A static program of the step."""

    def __init__(self, variant: str, is_quick: bool) -> None:
        paddle_ngraph.enable() if variant == PROGRAM_BY_ENGINE else paddle_ngraph.disable()
        paddle.enable_static()
        self._feed = dict(zip("xt", points(is_quick)))
        self._main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self._main, startup):
            layer = Residual(_static_gradient)
            feeds = [paddle.static.data(name, array.shape) for name, array in self._feed.items()]
            self._loss = layer(*feeds)
            paddle.optimizer.Adam(RATE).minimize(self._loss)
        self._executor = paddle.static.Executor(paddle.CPUPlace())
        self._executor.run(startup)
        scope = paddle.static.global_scope()
        for parameter, value in zip(layer.parameters(), weights()):
            scope.find_var(parameter.name).get_tensor().set(value, paddle.CPUPlace())
        super().__init__()

    def run(self) -> Array:
        (loss,) = self._executor.run(self._main, feed=self._feed, fetch_list=[self._loss])
        return np.array(loss)


VARIANTS: dict[str, Callable[..., Any]] = {
    PROGRAM: Program,
    PROGRAM_BY_ENGINE: Program,
    DYNAMIC: Layer,
    TO_STATIC: Layer,
    TO_STATIC_BY_ENGINE: Layer,
    TORCH: Torch,
}


def measure(options: Namespace) -> None:
    """Measures a training step; writes ``pinn.md`` and ``pinn.json``."""
    pace = Pace(1, 0.1) if options.quick else Pace(options.rounds, 2.0)
    variants = {n: v for n, v in VARIANTS.items() if n != TORCH or find_spec("torch") is not None}
    row = Row("pinn", f"{QUICK_POINTS if options.quick else POINTS} points")
    with Progress("pinn", 1) as progress:
        alternate(row, {name: (v, name, options.quick) for name, v in variants.items()}, pace)
        progress.done(f"{row.milliseconds(PROGRAM_BY_ENGINE):.1f} ms")
    _write(options, pace, row, list(variants))


def _write(options: Namespace, pace: Pace, row: Row, variants: Sequence[str]) -> None:
    engines = (PROGRAM_BY_ENGINE, TO_STATIC_BY_ENGINE)
    table = report.table(
        ["", "step (ms)", *(f"of *{engine}*" for engine in engines)],
        [
            [
                variant,
                f"{row.milliseconds(variant):.2f}",
                *(f"{row.ratio(variant, engine):.2f}" for engine in engines),
            ]
            for variant in variants
        ],
    )
    sections = [
        INTRODUCTION.format(points=POINTS),
        ABOUT.format(rounds=pace.rounds, reference=PROGRAM_BY_ENGINE),
        table,
    ]
    beside = {f"{name} (ms)": {"a step": f"{row.milliseconds(name):.1f}"} for name in variants}
    data = {"quick": options.quick, "row": asdict(row)}
    report.write(options.output, "pinn", "A physics-informed network", sections, data, beside)
