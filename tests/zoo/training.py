"""Training steps of a network of the zoo: by native Paddle, and by others from the same states.

Four steps of most networks with random weights are chaotic: native runs from weights that differ in
their last bit have other losses in the third step, so that whole runs show nothing. Here each step
of a run starts from the state in which the native run was before that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle

import paddle_ngraph
from tests.models.comparing import (
    NUDGES,
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


def train(
    family: NetworkFamily,
    scales: Sequence[float],
    engine: bool = False,
    native: Sequence[Run] = (),
    nudge: int | None = None,
    dtype: str = "float32",
) -> list[Run]:
    """Four steps with momentum: of each the loss, the gradients, and all that it updates.

    Args:
        family: The network.
        scales: What the mean square of each result is divided by in the loss.
        engine: Through ``compile``, or natively.
        native: The native run whose states the steps start from; empty: they follow each other.
        nudge: Change the states in their last bit, in one of several ways.
        dtype: ``float64``: states, inputs and all results are.
    """
    network = networks.network(family)
    networks.without_dropout(network)
    set_dtype(network, dtype)
    network.train()
    optimizer = paddle.optimizer.Momentum(1e-3, 0.9, parameters=network.parameters())
    function = paddle_ngraph.compile(network) if engine else network
    inputs = [
        value.astype(dtype) if value.dtype == np.float32 else value
        for value in networks.arrays(family)
    ]
    runs = []
    for step in range(STEPS):
        start = native[step].start if native else state(network)
        if nudge is not None:
            start = nudged(start, nudge)
        if native:
            set_state(network, start)
        paddle.seed(step)
        values = _step(network, function, list(map(paddle.to_tensor, inputs)), scales, optimizer)
        runs.append(Run(start, values | state(network)))
    return runs


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


def _step(
    network: Any, function: Any, inputs: list[Any], scales: Sequence[float], optimizer: Any
) -> Values:
    results = [r for r in function(*inputs) if r.dtype in (paddle.float32, paddle.float64)]
    loss = paddle.add_n([paddle.mean(r * r) / scale for r, scale in zip(results, scales)])
    loss.backward()
    values = {"the loss": np.array(loss)}
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            values[f"the gradient of {name}"] = np.array(parameter.grad)
    optimizer.step()
    optimizer.clear_grad()
    return values


def judge(
    family: NetworkFamily, scales: Sequence[float], native: Sequence[Run]
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Compares training by the engine with native Paddle's.

    A tensor is wrong that differs by more than native runs from weights that differ in their last
    bit, and by more than native Paddle itself is away from float64: a near tie, of a ReLU or a
    maximum, that rounding decides need not be one that the last bits of weights do. An exception
    is a tensor of which native Paddle has no digit right, but which is right within its layer: the
    gradient of a bias before a normalization is 0, and its rounding errors are relative to numbers
    that the tensor does not show.

    Args:
        family, scales: As in :func:`train`.
        native: The native run.

    Returns:
        How far tensors are apart, what rounding explains of it, and what is wrong, each by name.
    """
    engine = train(family, scales, engine=True, native=native)
    errors = apart(native, engine)
    rounding = dict.fromkeys(errors, 0.0)
    found = beyond_rounding(errors, rounding, TOLERANCE)
    for number in range(NUDGES):
        if not found:
            return errors, rounding, found
        other = apart(native, train(family, scales, native=native, nudge=number), exactly=True)
        rounding = {name: max(rounding[name], other[name]) for name in rounding}
        found = beyond_rounding(errors, rounding, TOLERANCE)
    if found:
        truth = train(family, scales, native=native, dtype="float64")
        away = apart(truth, native, exactly=True)
        rounding = {name: max(rounding[name], away[name]) for name in rounding}
        found = beyond_rounding(errors, rounding, TOLERANCE)
    if found:
        right = right_within_layers(truth, native, engine)
        found = {name: reason for name, reason in found.items() if name not in right}
    return errors, rounding, found


def right_within_layers(
    truth: Sequence[Run], native: Sequence[Run], engine: Sequence[Run]
) -> set[str]:
    """Tensors of which native runs have no digit, and the engine's is right within its layer.

    Args:
        truth, native, engine: Runs from the same states, the first in float64.
    """
    lost = {name for name, far in apart(truth, native, exactly=True).items() if far > UNDECIDED}
    joined = [[_by_layer(run) for run in runs] for runs in (truth, native, engine)]
    rounding = apart(joined[0], joined[1], exactly=True)
    wrong = beyond_rounding(apart(joined[0], joined[2]), rounding, TOLERANCE)
    return {name for name in lost if _layer(name) not in wrong}


def _by_layer(run: Run) -> Run:
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
