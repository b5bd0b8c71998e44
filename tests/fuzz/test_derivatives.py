"""Random networks whose derivatives, up to the third, are judged by float64.

A network is a function of points and parameters. Its program takes one or two derivatives by the
points, squares what they add up to, and differentiates that by all parameters. The judgement is
that of :mod:`paddle_ngraph.verification.judgement`, operator by operator; and the error of each
result, for which the yardstick is native Paddle's own in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import paddle_ngraph
from paddle_ngraph.verification import checks
from tests.dynamic import dynamic_mode

Step = Callable[["Network", Any], Any]
NETWORKS = 3
ROWS = 6
YARDSTICK = 8.0


@dataclass
class Network:
    """A network while its program is built: draws numbers of parameters the first time.

    Attributes:
        seed: The seed of everything in it.
        order: The order of the derivatives by the points: 1 or 2.
        feeds: The points, and the parameters so far.
        variables: The variables of the program, by the names of the feeds.
        given: The variables of a layer, in place of feeds.
    """

    seed: int
    order: int
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] | None = None

    def start(self, dtype: str, is_open: bool) -> Any:
        """Begins a program of floats of ``dtype``; returns the points."""
        self.random = np.random.default_rng(self.seed)
        self._dtype, self._is_open = dtype, is_open
        self.variables = {}
        return self.variable("points", (ROWS, int(self.random.integers(1, 4))), is_open)

    def variable(self, name: str, shape: tuple[int, ...], is_open: bool = False) -> Any:
        """A feed of this shape."""
        numbers = self.random.normal(0.0, 0.6, shape).astype("float32")
        if self.given is not None:
            self.variables[name] = self.given[name]
            return self.given[name]
        self.feeds.setdefault(name, numbers)
        declared = [-1, *shape[1:]] if is_open else list(shape)
        made = paddle.static.data(name, declared, self._dtype)
        made.stop_gradient = False
        self.variables[name] = made
        return made

    def parameter(self, *shape: int) -> Any:
        """A new parameter."""
        return self.variable(f"parameter_{len(self.variables)}", shape)

    def linear(self, x: Any, width: int | None = None) -> Any:
        """A linear layer."""
        columns = x.shape[-1]
        width = width or int(self.random.integers(2, 6))
        if self.random.random() < 0.3:
            out = paddle.matmul(x, self.parameter(width, columns), transpose_y=True)
        else:
            out = paddle.matmul(x, self.parameter(columns, width))
        return out + self.parameter(width)

    def pick(self, choices: list[Any]) -> Any:
        """One of the choices."""
        return choices[self.random.integers(len(choices))]


def _unary(function: Callable[[Any], Any]) -> Step:
    return lambda network, x: function(x)


def _beside(function: Callable[[Any, Any], Any]) -> Step:
    """A function of two layers of equal shape."""
    return lambda network, x: function(x, network.linear(x, x.shape[-1]))


# Steps that Paddle can differentiate three times.
THRICE: list[Step] = [
    *map(_unary, (paddle.tanh, F.sigmoid, paddle.sin, paddle.cos)),
    _unary(lambda x: paddle.pow(x, 2.0)),
    _unary(lambda x: paddle.pow(x, 3.0)),
    _unary(lambda x: 0.5 * x + 0.1),
    _unary(lambda x: paddle.concat([x, paddle.tanh(x)], axis=1)),
    _unary(lambda x: paddle.stack([x, x * x], axis=0)[1]),
    _unary(lambda x: paddle.transpose(paddle.transpose(x, [1, 0]), [1, 0])),
    _unary(lambda x: x + paddle.mean(x, axis=1, keepdim=True)),
    _unary(lambda x: x + paddle.sum(x, axis=0)),
    _unary(lambda x: paddle.tile(x, [1, 2])),
    _unary(lambda x: x[:, 1:] + x[:, :-1]),
    _beside(paddle.multiply),
    _beside(paddle.add),
    lambda network, x: network.linear(x),
]
# Steps that Paddle can differentiate twice.
TWICE: list[Step] = [
    *THRICE,
    *map(_unary, (F.relu, paddle.abs, paddle.square, F.celu)),
    _unary(lambda x: F.leaky_relu(x, 0.1)),
    _unary(lambda x: F.elu(x, 0.7)),
    _unary(lambda x: F.softplus(x, 1.5, 2.0)),
    _unary(lambda x: paddle.clip(x, -0.5, 0.5)),
    _unary(lambda x: paddle.log(x * x + 0.5)),
    _unary(lambda x: paddle.sqrt(x * x + 0.5)),
    _unary(lambda x: paddle.rsqrt(x * x + 0.5)),
    _unary(lambda x: F.pad(x, [1, 1])),
    _unary(lambda x: paddle.reshape(x, [-1, 1, x.shape[1]]).reshape([-1, x.shape[1]])),
    _beside(paddle.subtract),
    _beside(lambda x, y: x / (y * y + 0.5)),
    lambda network, x: x * network.parameter(x.shape[-1]),
    lambda network, x: x / (paddle.square(network.parameter(1)) + 0.5),
]


def _derivatives(network: Network, points: Any, gradient: Callable[..., Any]) -> list[Any]:
    """The network at the points, and its derivatives by them."""
    x = network.linear(points)
    for _ in range(network.random.integers(2, 5)):
        if x.shape[-1] > 1:
            x = network.pick(THRICE if network.order == 2 else TWICE)(network, x)
        x = network.pick([paddle.tanh, paddle.sin, F.sigmoid])(network.linear(x))
    found = [network.linear(x, 1)]
    for _ in range(network.order):
        slope = gradient(found[-1], points)
        column = int(network.random.integers(points.shape[1]))
        found.append(slope[:, column : column + 1])
    return found


def _loss(found: list[Any]) -> Any:
    residual = found[0] * found[-1] + found[1]
    return paddle.mean(residual * residual)


class Program:
    """The program of a network, in one precision."""

    def __init__(self, network: Network, dtype: str, is_open: bool) -> None:
        self.main = paddle.static.Program()
        self._network, self._dtype = network, dtype
        with paddle.static.program_guard(self.main), paddle.utils.unique_name.guard():
            points = network.start(dtype, is_open)
            found = _derivatives(network, points, lambda y, x: paddle.static.gradients([y], [x])[0])
            loss = _loss(found)
            gradients = paddle.static.gradients([loss], list(network.variables.values()))
            self._fetches = [loss, *found, *(each for each in gradients if each is not None)]

    def run(self, engine: bool, rows: int) -> list[np.ndarray]:
        """Runs it on ``rows`` points."""
        feed = {name: array.astype(self._dtype) for name, array in self._network.feeds.items()}
        feed["points"] = feed["points"][:rows]
        executor = paddle.static.Executor(paddle.CPUPlace())
        with paddle_ngraph.use_ngraph(engine):
            return executor.run(self.main, feed=feed, fetch_list=self._fetches)


def _assert_near(native: Any, engine: Any, exact: Any) -> None:
    """Asserts that the engine's errors have the size of native Paddle's, tensor by tensor."""
    for number, (theirs, ours, truth) in enumerate(zip(native, engine, exact)):
        errors = [float(np.abs(each - truth).max()) for each in (ours, theirs)]
        bound = YARDSTICK * errors[1] + 1e-4 * float(np.abs(truth).max())
        assert errors[0] <= bound, f"fetch {number} is off by {errors[0]}, Paddle by {errors[1]}"


@pytest.fixture
def verifies() -> Iterator[None]:
    """Compares each run of the engine with Paddle's kernels, in float64 and with noise."""
    paddle.set_flags({"FLAGS_ngraph_verify": 1})
    yield
    paddle.set_flags({"FLAGS_ngraph_verify": 0})


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_derivatives_of_networks(seed: int, order: int, verifies: None) -> None:
    for number in range(NETWORKS):
        network = Network(NETWORKS * seed + number, order)
        is_open = number % 2 == 1
        program = Program(network, "float32", is_open)
        exact = Program(network, "float64", is_open)
        report = paddle_ngraph.explain(program.main)
        assert len(report.intervals) == 1 and not report.native, str(report)
        assert any("_double_grad" in kind for kind in report.intervals[0].types)
        for rows in (ROWS, ROWS - 1) if is_open else (ROWS,):
            native = program.run(False, rows)
            paddle_ngraph.reset_stats()
            checks.reset()
            engine = program.run(True, rows)
            stats, log = paddle_ngraph.stats(), paddle_ngraph.verified_runs()
            assert log.checked == 1 and log.is_right, str(log)
            assert stats["engine_runs"] == 1 and stats["native_runs"] == 0
            _assert_near(native, engine, exact.run(False, rows))


class Residual(paddle.nn.Layer):  # type: ignore[misc]
    """A layer of dynamic mode that returns the loss of a network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self.given = {}
        for name, array in network.feeds.items():
            made = paddle.create_parameter(list(array.shape), "float32")
            made.set_value(array)
            self.given[name] = made
            self.add_parameter(name, made)

    def forward(self, scale: Any) -> Any:
        """The loss at points that ``scale`` multiplies."""
        return scale * self.loss()

    @paddle.jit.not_to_static  # type: ignore[misc]
    def loss(self) -> Any:
        """The loss; a method that ``to_static`` does not translate, but traces."""
        self._network.given = {name: paddle.assign(made) for name, made in self.given.items()}
        points = self._network.start("float32", False)
        return _loss(_derivatives(self._network, points, _dynamic_gradient))


def _dynamic_gradient(y: Any, x: Any) -> Any:
    return paddle.grad([y], [x], create_graph=True)[0]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_derivatives_in_to_static(seed: int, order: int) -> None:
    _check_in_to_static(seed, order)


def test_loops_that_depend_on_each_other() -> None:
    """The plugin would fuse such loops of this network: the core compiles it again without."""
    paddle_ngraph.clear_cache()
    _check_in_to_static(seed=3, order=2)
    paddle_ngraph.clear_cache()


def _check_in_to_static(seed: int, order: int) -> None:
    network = Network(seed, order)
    Program(network, "float32", False)
    with dynamic_mode():
        layer = Residual(network)
        traced = paddle.jit.to_static(layer, full_graph=True)
        results = []
        for engine in (False, True):
            paddle_ngraph.reset_stats()
            with paddle_ngraph.use_ngraph(engine):
                loss = traced(paddle.to_tensor(1.0))
                loss.backward()
            stats = paddle_ngraph.stats()
            results.append([loss.numpy(), *(p.grad.numpy() for p in layer.parameters())])
            layer.clear_gradients()
        assert stats["engine_runs"] == 2 and not stats["native_by_type"], stats
    for theirs, ours in zip(*results):
        np.testing.assert_allclose(ours, theirs, 1e-3, 1e-6 + 1e-4 * float(np.abs(theirs).max()))
