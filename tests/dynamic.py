"""Networks in dynamic mode, run by Paddle and by the engine."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache
from paddle.jit.sot.utils.envs import min_graph_size_guard

import paddle_ngraph
from paddle_ngraph.frontends.dynamic import tuning_policy
from paddle_ngraph.frontends.dynamic.lazy import trace_graph

CLASSES = 5
WORDS = 60
BY = pytest.mark.parametrize("by_ast", [True, False], ids=["AST", "SOT"])


@contextmanager
def dynamic_mode() -> Iterator[None]:
    """Dynamic mode without a minimum size of graphs, so that small ones go to the engine, too."""
    trace_graph._training_graph_ids = itertools.count(1)  # each test may make a process's share
    paddle.disable_static()
    before = paddle.get_flags(["FLAGS_ngraph_min_interval_us", "FLAGS_ngraph_cache_dir"])
    paddle.set_flags({"FLAGS_ngraph_min_interval_us": 0, "FLAGS_ngraph_cache_dir": ""})
    try:
        with min_graph_size_guard(0):
            yield
    finally:
        paddle.set_flags(before)
        paddle.enable_static()


def set_policy(monkeypatch: Any, **changes: Any) -> None:
    """Changes constants of the autotuner."""
    changed = dataclasses.replace(tuning_policy.POLICY, **changes)
    monkeypatch.setattr(tuning_policy, "POLICY", changed)


def calls(
    function: Callable[[Any], Any], given: Callable[[], Iterable[Any]], gradient: bool
) -> Callable[[Any], list[Any]]:
    """A scenario: a function of each of these tensors, and their gradients if wanted."""

    def scenario(compiled: Callable[[Any], Any]) -> list[Any]:
        compiled_function, found = compiled(function), []
        for x in given():
            x.stop_gradient = not gradient
            result = compiled_function(x)
            found.append(result)
            if gradient:
                result.square().sum().backward()
                found.append(x.grad)
        return found

    return scenario


def made(build: Callable[[], Any], seed: int = 3) -> Any:
    """Returns the result of ``build``, with equal parameters and names each time."""
    with paddle.utils.unique_name.guard():
        paddle.seed(seed)
        return build()


def static(layer: Any, by_ast: bool = True) -> Any:
    return paddle.jit.to_static(layer, full_graph=by_ast)


def twice(
    scenario: Callable[[], Any], runs: int = 1, rtol: float = 1e-4, atol: float = 1e-5
) -> Any:
    """Runs a scenario by Paddle and by the engine, and compares all results.

    Args:
        scenario: Creates its objects; returns arrays, tensors or scalars, nested.
        runs: The minimum number of engine runs.
        rtol, atol: As for ``assert_allclose``.

    Returns:
        The results of the engine.
    """
    before = paddle_ngraph.stats()["engine_runs"]
    expected = list(flat(alone(scenario, engine=False)))
    assert paddle_ngraph.stats()["engine_runs"] == before
    results = alone(scenario, engine=True)
    counted = paddle_ngraph.stats()["engine_runs"] - before
    assert counted >= runs, f"the engine ran {counted} times"
    agree(results, expected, rtol, atol)
    return results


def alone(scenario: Callable[[], Any], engine: bool) -> Any:
    """Runs a scenario as the first one of the process: random numbers, and the state of SOT."""
    OpcodeExecutorCache().clear()
    paddle.seed(11)
    with paddle_ngraph.use_ngraph(engine):
        return scenario()


def agree(results: Any, expected: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Compares nested results."""
    found, wanted = list(flat(results)), list(flat(expected))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted):
        assert (theirs.dtype, theirs.shape) == (ours.dtype, ours.shape)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def flat(results: Any) -> Iterator[np.ndarray]:
    """The arrays in nested results; an absent gradient is an empty array."""
    if isinstance(results, dict):
        results = [results[name] for name in sorted(results)]
    if isinstance(results, (list, tuple)):
        for each in results:
            yield from flat(each)
    elif results is None:
        yield np.zeros(0)
    else:
        yield np.array(results.numpy() if isinstance(results, paddle.Tensor) else results)


def values(layer: Any) -> dict[str, np.ndarray]:
    """Parameters and buffers."""
    return {name: value.numpy() for name, value in layer.state_dict().items()}


def gradients(layer: Any) -> list[Any]:
    """The gradient of each parameter."""
    return [None if p.grad is None else p.grad.numpy() for p in layer.parameters()]


def floats(*shape: int, seed: int = 0) -> Any:
    """A tensor of normally distributed numbers."""
    numbers = np.random.default_rng(seed).normal(size=shape)
    return paddle.to_tensor(numbers.astype("float32"))


# -- networks --------------------------------------------------------------------------------------


def mlp() -> Any:
    """For [N, 20]."""
    return nn.Sequential(
        nn.Linear(20, 31), nn.ReLU(), nn.Linear(31, 17), nn.Tanh(), nn.Linear(17, CLASSES)
    )


def lenet() -> Any:
    """For [N, 1, 28, 28]."""
    return paddle.vision.models.LeNet(CLASSES)


def resnet() -> Any:
    """For [N, 3, 32, 32]."""
    return paddle.vision.models.resnet18(num_classes=CLASSES)


def mobilenet() -> Any:
    """For [N, 3, 32, 32]."""
    return paddle.vision.models.mobilenet_v2(scale=0.25, num_classes=CLASSES)


class Encoder(nn.Layer):
    """As BERT, for [N, 9] tokens: embeddings with positions, encoders; the first token decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 24), nn.Embedding(16, 24)
        self.norm, self.drop = nn.LayerNorm(24), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.1, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.out = nn.Linear(24, CLASSES)

    def forward(self, x: Any) -> Any:
        places = paddle.arange(9).unsqueeze(0)
        embedded = self.drop(self.norm(self.words(x) + self.positions(places)))
        return self.out(F.tanh(self.encoder(embedded)[:, 0]))


class Recurrent(nn.Layer):
    """A bidirectional layer over tokens, the mean over time decides. For [N, 9] tokens."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.layer = kind(12, 10, num_layers=2, direction="bidirect")
        self.out = nn.Linear(20, CLASSES)

    def forward(self, x: Any) -> Any:
        steps, _ = self.layer(self.words(x))
        return self.out(steps.mean(axis=1))


def lstm() -> Any:
    return Recurrent(nn.LSTM)


def gru() -> Any:
    return Recurrent(nn.GRU)


NETWORKS = [mlp, lenet, resnet, mobilenet, Encoder, lstm, gru]


def inputs(build: Callable[[], Any], number: int = 0, size: int = 6) -> Any:
    """A batch for one of these networks."""
    if build in (Encoder, lstm, gru):
        words = np.random.default_rng(number).integers(0, WORDS, (size, 9))
        return paddle.to_tensor(words.astype("int64"))
    shape = {mlp: (20,), lenet: (1, 28, 28)}.get(build, (3, 32, 32))
    return floats(size, *shape, seed=number)


def labels(number: int = 0, size: int = 6) -> Any:
    """The classes of a batch."""
    return paddle.to_tensor(np.random.default_rng(number + 1000).integers(0, CLASSES, (size,)))


def trained(layer: Any, build: Any, steps: int) -> list[Any]:
    """The losses of ``steps`` steps with momentum, on batches of 16 for ``build``."""
    optimizer = paddle.optimizer.Momentum(0.003, 0.9, layer.parameters())
    losses = []
    for step in range(steps):
        loss = F.cross_entropy(layer(inputs(build, step, 16)), labels(step, 16))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss)
    return losses
