"""One recurrent network computed by Paddle and with packed weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import nn

import paddle_ngraph
from paddle_ngraph import mkl_packed

MODES = ("RNN_TANH", "RNN_RELU", "GRU", "LSTM")


@dataclass(frozen=True)
class Shape:
    """Sizes of a network and its input."""

    input: int
    hidden: int
    batch: int
    steps: int
    layers: int = 1
    direction: str = "forward"

    @property
    def width(self) -> int:
        return self.hidden * (2 if self.direction == "bidirect" else 1)

    @property
    def cells(self) -> int:
        return self.layers * self.width // self.hidden


def layer(mode: str, shape: Shape, packed: bool = False, **options: Any) -> Any:
    """Paddle's layer, or the packed one."""
    place = mkl_packed if packed else nn
    if mode.startswith("RNN"):
        options["activation"] = mode[4:].lower()
    kind = {"GRU": place.GRU, "LSTM": place.LSTM}.get(mode, place.SimpleRNN)
    return kind(shape.input, shape.hidden, shape.layers, direction=shape.direction, **options)


def pair(mode: str, shape: Shape, **options: Any) -> tuple[Any, Any]:
    """Paddle's layer, and the packed one with equal weights."""
    paddle.seed(1)
    native = layer(mode, shape, **options)
    packed = layer(mode, shape, packed=True, **options)
    packed.set_state_dict(native.state_dict())
    return native, packed


@dataclass
class Data:
    """An input, initial states, lengths, and gradients of the outputs."""

    x: np.ndarray
    states: list[np.ndarray]
    lengths: np.ndarray | None
    out_grad: np.ndarray
    state_grads: list[np.ndarray]


def data(mode: str, shape: Shape, ragged: bool = False, time_major: bool = False) -> Data:
    random = np.random.default_rng(0)

    def normal(*sizes: int) -> np.ndarray:
        return random.standard_normal(sizes).astype(np.float32)

    outer = (shape.steps, shape.batch) if time_major else (shape.batch, shape.steps)
    count = 2 if mode == "LSTM" else 1
    state = (shape.cells, shape.batch, shape.hidden)
    lengths = random.integers(1, shape.steps + 1, shape.batch).astype(np.int32)
    return Data(
        x=normal(*outer, shape.input),
        states=[normal(*state) for _ in range(count)],
        lengths=lengths if ragged else None,
        out_grad=normal(*outer, shape.width),
        state_grads=[normal(*state) for _ in range(count)],
    )


def run(net: Any, given: Data, seed: int = 5) -> dict[str, np.ndarray]:
    """Returns outputs, final states and every gradient, by name."""
    paddle.seed(seed)
    x = paddle.to_tensor(given.x, stop_gradient=False)
    states = [paddle.to_tensor(state, stop_gradient=False) for state in given.states]
    lengths = None if given.lengths is None else paddle.to_tensor(given.lengths)
    out, last = net(x, tuple(states) if len(states) > 1 else states[0], lengths)
    last = list(last) if len(states) > 1 else [last]
    loss = (out * paddle.to_tensor(given.out_grad)).sum()
    for state, grad in zip(last, given.state_grads):
        loss = loss + (state * paddle.to_tensor(grad)).sum()
    net.clear_gradients()
    loss.backward()
    found = {"out": out, "x_grad": x.grad}
    found.update({f"last_{i}": state for i, state in enumerate(last)})
    found.update({f"state_grad_{i}": state.grad for i, state in enumerate(states)})
    found.update({f"grad of {name}": p.grad for name, p in net.named_parameters()})
    return {name: tensor.numpy() for name, tensor in found.items()}


def assert_close(expected: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Asserts that every tensor is within 1e-5 of its largest value."""
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        error = np.abs(found[name] - value).max() / np.abs(value).max()
        assert error <= 1e-5, f"{name}: {error:.1e}"


class Packs:
    """Counts the weights packed inside a ``with`` block."""

    def __enter__(self) -> Packs:
        self._before = mkl_packed.pack_count()
        return self

    def __exit__(self, *_: object) -> None:
        self.count = mkl_packed.pack_count() - self._before


def train_static(
    mode: str, shape: Shape, *, packed: bool, engine: bool, steps: int, **options: Any
) -> list[float]:
    """Returns the losses of some training steps in a static program."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.utils.unique_name.guard(), paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [-1, -1, shape.input], "float32")
        out, _ = layer(mode, shape, packed=packed, **options)(x)
        loss = paddle.mean(paddle.square(out - 0.3))
        paddle.optimizer.Adam(0.01).minimize(loss)
    random = np.random.default_rng(3)
    feed = random.standard_normal((shape.batch, shape.steps, shape.input)).astype(np.float32)
    executor = paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(paddle.static.Scope()), paddle_ngraph.use_ngraph(engine):
        paddle.seed(7)
        executor.run(startup)
        return [
            float(executor.run(main, feed={"x": feed}, fetch_list=[loss])[0]) for _ in range(steps)
        ]
