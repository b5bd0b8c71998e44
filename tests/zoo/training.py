"""Training steps of a network of the zoo: by native Paddle, and by others from the same states.

Four steps of most networks with random weights are chaotic: native runs from weights that differ in
their last bit have other losses in the third step, so that whole runs show nothing. Here each step
of a run starts from the state in which the native run was before that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from tests.models.comparing import (
    UNDECIDED,
    Run,
    Values,
    beyond_rounding,
    distances,
    nudged,
)
from tests.zoo import networks
from tests.zoo.families import NetworkFamily

STEPS = 4
TOLERANCE = 1e-3
# Of how many weights, 0.1 % apart, one must be without a near tie.
WEIGHTS = 8
NEAR = 2**-10


class Training:
    """A network that trains, natively or by the engine, as often as needed.

    Args:
        family: The network.
        scales: What the mean square of each result is divided by in the loss.
        engine: Through ``compile``, or natively.
        dtype: ``float64``: states, inputs and all results are.
    """

    def __init__(
        self,
        family: NetworkFamily,
        scales: Sequence[float],
        engine: bool = False,
        dtype: str = "float32",
    ) -> None:
        self._network = networks.network(family)
        networks.without_dropout(self._network)
        set_dtype(self._network, dtype)
        self._network.train()
        self._function = paddle_ngraph.compile(self._network) if engine else self._network
        self._scales = scales
        self._dtype = dtype
        self._first = state(self._network)
        self._inputs = [
            value.astype(dtype) if value.dtype == np.float32 else value
            for value in networks.training_arrays(family)
        ]

    def run(self, native: Sequence[Run] = (), weights: int = 0) -> list[Run]:
        """Four steps with momentum: of each the loss, the gradients, and all that it updates.

        Args:
            native: The native run whose states the steps start from; empty: they follow each other.
            weights: Which weights a run without ``native`` starts from: the network's own, or
                others near them, 0.1 % apart.
        """
        parameters = self._network.parameters()
        optimizer = paddle.optimizer.Momentum(1e-3, 0.9, parameters=parameters)
        set_state(self._network, nudged(self._first, weights, NEAR) if weights else self._first)
        runs = []
        for step in range(STEPS):
            if native:
                set_state(self._network, native[step].start)
            start = state(self._network)
            paddle.seed(step)
            runs.append(Run(start, self._step(optimizer) | state(self._network)))
        return runs

    def _step(self, optimizer: Any) -> Values:
        with default_dtype(self._dtype):  # of tensors that the network makes
            results = self._function(*map(paddle.to_tensor, self._inputs))
        results = [r for r in results if r.dtype in (paddle.float32, paddle.float64)]
        squares = [paddle.mean(r * r) / scale for r, scale in zip(results, self._scales)]
        loss = paddle.add_n(squares)
        loss.backward()
        values = {"the loss": np.array(loss)}
        for name, parameter in self._network.named_parameters():
            if parameter.grad is not None:
                values[f"the gradient of {name}"] = np.array(parameter.grad)
        optimizer.step()
        optimizer.clear_grad()
        return values


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """Makes new tensors of a dtype."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)


def set_dtype(network: Any, dtype: str) -> None:
    """Casts parameters and buffers, except buffers of integers: Paddle would cast these, too."""
    integers = [
        (layer, name, buffer.clone())
        for layer in network.sublayers(include_self=True)
        for name, buffer in layer.named_buffers(include_sublayers=False)
        if not buffer.is_floating_point()
    ]
    network.to(dtype=dtype)
    for layer, name, buffer in integers:
        setattr(layer, name, buffer)


@dataclass
class Distances:
    """How far tensors are from float64, from several weights: the engine's, and native Paddle's.

    Attributes:
        engine, native: By name, one element for each weights.
    """

    engine: dict[str, list[float]] = field(default_factory=dict)
    native: dict[str, list[float]] = field(default_factory=dict)

    def add(self, truth: Sequence[Run], native: Sequence[Run], engine: Sequence[Run]) -> None:
        """Measures runs from the same states, of which the first is in float64."""
        for found, runs, exactly in ((self.engine, engine, False), (self.native, native, True)):
            for name, distance in apart(truth, runs, exactly).items():
                found.setdefault(name, []).append(distance)

    @property
    def errors(self) -> dict[str, float]:
        """The least distance of each of the engine's tensors."""
        return {name: min(distances) for name, distances in self.engine.items()}

    @property
    def rounding(self) -> dict[str, float]:
        """The usual distance of each of native Paddle's tensors."""
        return {name: float(np.median(distances)) for name, distances in self.native.items()}

    @property
    def wrong(self) -> dict[str, str]:
        """Tensors further from float64, from all weights, than native Paddle's usually are.

        Near ties, of a ReLU or a maximum, and normalizations of a few equal numbers make rounding
        visible, from some weights by percents and from others not at all; a fault is there from
        all. So neither a tie in the engine's run counts nor one in native Paddle's.
        """
        return beyond_rounding(self.errors, self.rounding, TOLERANCE)


def judge(
    family: NetworkFamily, scales: Sequence[float], natively: Training, native: Sequence[Run]
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Compares training by the engine with native Paddle's, and both with float64 if they differ.

    A tensor that is :attr:`Distances.wrong` is tried again from other weights. A tensor of which
    native Paddle has no digit right is judged within its layer: the gradient of a bias before a
    normalization is 0, and its rounding errors are relative to numbers that the tensor does not
    show.

    Args:
        family, scales: As in :class:`Training`.
        natively: The network in native Paddle.
        native: Its run from its own weights.

    Returns:
        How far tensors are apart, what rounding explains of it, and what is wrong, each by name.
    """
    compiled = Training(family, scales, engine=True)
    engine = compiled.run(native)
    errors = apart(native, engine)
    if not beyond_rounding(errors, dict.fromkeys(errors, 0.0), TOLERANCE):
        return errors, dict.fromkeys(errors, 0.0), {}
    exact = Training(family, scales, dtype="float64")
    tensors, layers = Distances(), Distances()
    for weights in range(WEIGHTS):
        if weights:
            native = natively.run(weights=weights)
            engine = compiled.run(native)
        runs = exact.run(native), native, engine
        tensors.add(*runs)
        layers.add(*([by_layer(step) for step in run] for run in runs))
        found = wrong_tensors(tensors, layers)
        if not found:
            break
    return tensors.errors, tensors.rounding, found


def wrong_tensors(tensors: Distances, layers: Distances) -> dict[str, str]:
    """The wrong tensors; those without a right digit by native Paddle are wrong as their layer is.

    Args:
        tensors: The distances of tensors.
        layers: The distances of the same runs, in which the tensors of a layer are one.
    """
    own, shared = tensors.wrong, layers.wrong
    reasons = {
        name: shared.get(_layer(name)) if far > UNDECIDED else own.get(name)
        for name, far in tensors.rounding.items()
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def by_layer(run: Run) -> Run:
    """A run in which the tensors of a layer are one; its running statistics remain apart."""
    return Run(_joined(run.start), _joined(run.values))


def _joined(values: Values) -> Values:
    members: dict[str, list[Any]] = {}
    for name, value in values.items():
        members.setdefault(_layer(name), []).append(value.reshape(-1))
    return {name: np.concatenate(parts) for name, parts in members.items()}


def _layer(name: str) -> str:
    layer, _, member = name.rpartition(".")
    return name if not layer or member.startswith("_") else layer


def apart(
    expected: Sequence[Run], actual: Sequence[Run], exactly: bool = False
) -> dict[str, float]:
    """The distances of all tensors in all steps, as :func:`tests.models.comparing.distances`."""
    return {
        f"step {step}: {name}": distance
        for step, pair in enumerate(zip(expected, actual))
        for name, distance in distances(*map(_in_float64, pair), exactly).items()
    }


def _in_float64(run: Run) -> Run:
    return Run(*({n: _widened(v) for n, v in part.items()} for part in (run.start, run.values)))


def _widened(value: Any) -> Any:
    return value.astype("float64") if value.dtype == np.float32 else value


def state(network: Any) -> Values:
    """The parameters and buffers of a network."""
    return {name: np.array(value) for name, value in network.state_dict().items()}


def set_state(network: Any, values: Values) -> None:
    """Writes the parameters and buffers of a network, in its own dtypes."""
    for name, tensor in network.state_dict().items():
        own = tensor.numpy().dtype
        tensor.set_value(values[name].astype(own))
