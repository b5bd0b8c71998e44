"""The equation of ``benchmarks.pinn`` and its network in PyTorch; Paddle is not imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.comparison import milliseconds
from benchmarks.peers import CORES
from benchmarks.works import Array

POINTS, QUICK_POINTS = 4096, 256
WIDTHS = (2, 128, 128, 128, 128, 1)
RATE = 1e-3
DIFFUSION, REACTION = 1e-4, 5.0
STEPS = 3  # number of losses to compare


def points(is_quick: bool) -> list[Array]:
    """Coordinates x in [-1, 1] and t in [0, 1], each of shape [points, 1]."""
    generator = np.random.default_rng(0)
    count = QUICK_POINTS if is_quick else POINTS
    coordinates = generator.uniform([-1.0, 0.0], 1.0, (count, 2)).astype("float32")
    return np.split(coordinates, 2, axis=1)


def weights() -> list[Array]:
    """Weights and biases of all layers, of shapes [inputs, outputs] and [outputs]."""
    generator = np.random.default_rng(1)
    made = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        scale = np.sqrt(2.0 / (inputs + outputs))
        made += [generator.normal(0.0, scale, (inputs, outputs)), np.zeros(outputs)]
    return [array.astype("float32") for array in made]


def loss_of(network: Any, x: Any, t: Any, library: Any, gradient: Callable[..., Any]) -> Any:
    """The loss, by the functions of ``library``, paddle or torch.

    ``gradient(y, x)`` is the gradient of the sum of y, which can be differentiated again.
    """
    u = network(library.concat([x, t], 1))
    u_x, u_t = gradient(u, x), gradient(u, t)
    u_xx = gradient(u_x, x)
    residual = u_t - DIFFUSION * u_xx + REACTION * (u * u * u - u)
    start = network(library.concat([x, library.zeros_like(t)], 1))
    error = start - x * x * library.cos(x * np.pi)
    return (residual * residual).mean() + (error * error).mean()


class Torch:
    """PyTorch's eager mode."""

    def __init__(self, variant: str, is_quick: bool) -> None:
        import torch

        torch.set_num_threads(CORES)
        layers: list[Any] = []
        given = iter(weights())
        for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
            linear = torch.nn.Linear(inputs, outputs)
            linear.weight.data = torch.from_numpy(next(given).T.copy())
            linear.bias.data = torch.from_numpy(next(given))
            layers += [linear, torch.nn.Tanh()]
        self._torch, self._network = torch, torch.nn.Sequential(*layers[:-1])
        self._optimizer = torch.optim.Adam(self._network.parameters(), RATE, fused=True)
        self._points = [torch.tensor(array).requires_grad_() for array in points(is_quick)]
        self._found = [self.run() for _ in range(STEPS)]

    def run(self) -> Array:
        """Runs one step, and returns its loss."""
        self._optimizer.zero_grad()
        x, t = self._points
        loss = loss_of(self._network, x, t, self._torch, self._gradient)
        loss.backward()
        self._optimizer.step()
        return np.array(loss.item())

    def results(self) -> list[Array]:
        """Returns the first losses."""
        return self._found

    def measure(self, seconds: float) -> list[float]:
        """Runs for ``seconds``, at least three steps; returns the milliseconds of each."""
        return milliseconds(self.run, seconds)

    def engine_runs(self) -> int:
        """Returns the number of engine runs."""
        return 0

    def _gradient(self, y: Any, x: Any) -> Any:
        ones = self._torch.ones_like(y)
        return self._torch.autograd.grad(y, x, ones, create_graph=True)[0]
